_gpucheck_completion() {
    local i program="${1/#\~\//$HOME/}" IFS=$'\n'
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        if declare -F _command_offset >/dev/null; then
            IFS=$' \t\n'
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
        fi
        return
    done
    type -P "$program" >/dev/null || program=gpucheck
    COMPREPLY=($(_GPUCHECK_COMPLETE=bash _GPUCHECK_LINE="${COMP_LINE:0:COMP_POINT}" \
        _GPUCHECK_BREAKS="$COMP_WORDBREAKS" "$program" 2>/dev/null))
}
complete -o default -o bashdefault -F _gpucheck_completion gpucheck
