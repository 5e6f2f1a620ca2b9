"""Scripts that complete in bash, zsh and fish: each calls this program with the words so far."""

from __future__ import annotations

from types import MappingProxyType

VARIABLE = "_GPUCHECK_COMPLETE"

#: Bash splits words at colons too, so it passes the whole line, and which characters split it.
#: After "--" stands a command of the user's, which the shell completes as it does elsewhere.
#: The program is the one that was typed, or the one in PATH if that is an alias of it.
SCRIPTS = MappingProxyType(
    {
        "bash": f"""\
_gpucheck_completion() {{
    local i program="${{1/#\\~\\//$HOME/}}" IFS=$'\\n'
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${{COMP_WORDS[i]}} == -- ]] || continue
        if declare -F _command_offset >/dev/null; then
            IFS=$' \\t\\n'
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            COMPREPLY=($(compgen -c -- "${{COMP_WORDS[COMP_CWORD]}}"))
        fi
        return
    done
    type -P "$program" >/dev/null || program=gpucheck
    COMPREPLY=($({VARIABLE}=bash _GPUCHECK_LINE="${{COMP_LINE:0:COMP_POINT}}" \\
        _GPUCHECK_BREAKS="$COMP_WORDBREAKS" "$program" 2>/dev/null))
}}
complete -o default -o bashdefault -F _gpucheck_completion gpucheck
""",
        "zsh": f"""\
#compdef gpucheck
_gpucheck_completion() {{
    local -i cmd=${{words[(i)--]}}
    if (( cmd < CURRENT )); then
        shift $cmd words
        (( CURRENT -= cmd ))
        _normal
        return
    fi
    local program="${{words[1]/#\\~\\//$HOME/}}"
    (( $+commands[$program] )) || [[ -x $program ]] || program=gpucheck
    local -a found
    found=("${{(@f)$({VARIABLE}=zsh "$program" -- "${{(@Q)words[2,CURRENT-1]}}" "${{(Q)PREFIX}}" \\
        2>/dev/null)}}")
    if [[ -n "${{found[1]}}" ]]; then
        _describe -V gpucheck found
    else
        _files
    fi
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit -i }}
compdef _gpucheck_completion gpucheck
""",
        "fish": f"""\
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
    set -l found (env {VARIABLE}=fish $program -- $words[2..-2] "$last" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c gpucheck -f -k -a '(_gpucheck_completion)'
""",
    }
)
