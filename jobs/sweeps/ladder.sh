#!/usr/bin/env bash
# Measure again what the ladder has in addition to ladder.yaml: a GPT-2 and a Llama, losses, and single changes. Options
# are those of `profiler-job run`, such as --results. PROFILER may name another profiler-job. On one H200: 5 minutes for
# the steps of the Llama, 8 for GPT-2's, 18 for the losses, 30 for the single changes.
set -uo pipefail
sweeps=$(dirname "$0")
options=("$@")
failed=0

# choose SWEEP ONLY: measure these runs of a sweep. Stops if no run can be measured, and goes on if one failed.
choose() {
  "${PROFILER:-profiler-job}" run --sweep "$sweeps/$1.yaml" --only "$2" ${options[@]+"${options[@]}"} || failed=$?
  [ "$failed" -le 1 ] || exit "$failed"
}

eager=attention=naive,optimizer=own,compile=off
fused=precision=bf16,attention=sdpa,optimizer=fused
compiled=precision=fp32,attention=naive,optimizer=own,compile=default,compile=cudagraphs
after_plain=(
  "precision=fp32,precision=bf16,attention=sdpa,optimizer=own,compile=off"
  "precision=fp32,attention=naive,optimizer=fused,compile=off"
  "$fused"
)

for only in "$eager" "${after_plain[@]}"; do
  choose ladder_hf "block=ladder_llama,$only"
  choose ladder_hf "block=ladder_gpt2,vocab_size=50257,$only"
done
for only in "$eager" "$fused,compile=off,compile=cudagraphs"; do
  choose ladder_hf "block=ladder_gpt2,vocab_size=50304,$only"
done

for case in size=small,size=xl,context_length=512 size=medium,size=2.7B,context_length=1024; do
  for only in "precision=tf32,precision=bf16,$eager" "${after_plain[@]}"; do
    choose losses "block=ladder_losses,$case,$only"
  done
  choose losses "block=ladder_losses_loop,$case"
done
choose losses "block=ladder_losses,size=small,context_length=512,$compiled"

# GPT-2 drops out at random, so its losses are of the same model with dropout off.
choose losses block=ladder_losses_llama
gpt2=block=ladder_losses_gpt2
for only in "precision=tf32,precision=bf16,$eager" "${after_plain[@]}" "$compiled" \
    precision=fp32,attention=naive,optimizer=loop,compile=off; do
  choose losses "$gpt2,vocab_size=50257,$only"
done
for only in precision=fp32,attention=naive,optimizer=loop,compile=off "$fused,compile=cudagraphs"; do
  choose losses "$gpt2,vocab_size=50304,$only"
done

# torch.compile and CUDA graphs alone; fused attention alone at 2.7B, which needs more than 80 GB.
choose compile block=compile,block=compile_short,block=compile_llama,block=compile_gpt2
for case in size=xl,context_length=512 size=medium,size=2.7B,context_length=1024; do
  choose compile "block=compile_larger,$case"
done
choose unprofiled_cells block=attention_alone
exit "$failed"
