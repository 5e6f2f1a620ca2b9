function _gpucheck_completion
    set -l words (commandline -opc) (commandline -ct)
    if set -l cmd (contains -i -- -- $words[1..-2])
        set -l before (string escape -- $words[(math $cmd + 1)..-2])
        complete -C (string join ' ' -- $before $words[-1])
        return
    end
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    command -q $program; or set program gpucheck
    set -l last (string unescape -- $words[-1])
    or set last (string sub -s 2 -- $words[-1])
    set -l found (env _GPUCHECK_COMPLETE=fish $program -- $words[2..-2] "$last" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c gpucheck -f -k -a '(_gpucheck_completion)'
