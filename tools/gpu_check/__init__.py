"""`make gpu-check`: what has to be seen on a real GPU, as one command that fits in nine minutes and resumes.

    __main__    arguments, exit code          plan      the parts, in order, with their time limits
    conduct     runs them, budget, resume     launch    one part as a process of its own
    record      the JSON that is kept         report    table and files           part_process  one part, in that process
    wheels      packages for machines without a network               evidence  logs of what did not pass

    check_device  check_tests  check_agreement  check_agreement_bf16  check_kernels  check_sampling
    check_engine  check_steps  check_adapters  check_drafts  check_peer
    timing  shapes  serving  profiled  interpreted                    what these parts share

Beside torch, triton, NumPy and safetensors it needs what `make gpu-wheels` brings along. Only processes of parts import any
of them: a machine whose driver hangs still gets a report.
"""
