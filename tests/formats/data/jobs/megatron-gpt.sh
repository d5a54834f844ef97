#!/bin/bash
# Learned positions, options in texts, and a launcher that writes them.
NLAYERS=96; HIDDEN=12288
OPTIONS=" \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 16 \
    --num-layers-per-virtual-pipeline-stage 3 \
    --num-layers ${NLAYERS} --hidden-size ${HIDDEN} --num-attention-heads 96 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 1 --global-batch-size 1536 \
    --recompute-activations \
    --fp16 --vocab-file gpt2-vocab.json --tokenizer-type GPT2BPETokenizer"
for node in a b; do
    OPTIONS="$OPTIONS --unheard $node"
done
cat <<EOT > hosts
--num-layers 1
EOT
run_cmd="python -u pretrain_gpt.py $OPTIONS"
srun -l --gpus-per-node 8 sh -c "${run_cmd}"
