#compdef gpucheck
_gpucheck_completion() {
    local -i cmd=${words[(i)--]}
    if (( cmd < CURRENT )); then
        shift $cmd words
        (( CURRENT -= cmd ))
        _normal
        return
    fi
    local program="${words[1]/#\~\//$HOME/}"
    (( $+commands[$program] )) || [[ -x $program ]] || program=gpucheck
    local -a found
    found=("${(@f)$(_GPUCHECK_COMPLETE=zsh "$program" -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" \
        2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        _describe -V gpucheck found
    else
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
compdef _gpucheck_completion gpucheck
