#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
TOKENIZER=${1:-"MOCK"} # a path, or "MOCK"
mkdir -p "$(dirname "$2")"

GPUS_PER_NODE=8
NODES=${NNODES:-4}
TP=2
DTYPE="fp8"
SEQ_LENGTH=8192
BATCH=$(($GPUS_PER_NODE * NODES / TP * 8))

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NODES
    --node_rank ${NODE_RANK:-0}
)
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ_LENGTH
    --max-position-embeddings $SEQ_LENGTH
    --position-embedding-type rope  # not learned
    --swiglu
    --untie-embeddings-and-output-weights
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size $BATCH
    --lr 0.00015
    --bf16
    --grad-reduce-in-bf16
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024")
fi
DDP_ARGS=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
TRAINING_ARGS+=("${DDP_ARGS[@]}")
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$3" ]]; then
    DATA_ARGS=("--mock-data" "--vocab-size 128256" "--split '99,1,0'")
else
    DATA_ARGS=("--data-path $3" "--vocab-size 32000")
fi
if [ ! -f pretrain_gpt.py ]; then
    echo "--num-layers 99 is not run"
    exit 1
fi

torchrun ${DISTRIBUTED_ARGS[@]} \
    pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${DTYPE_ARGS[@]} \
    --tensor-model-parallel-size $TP --sequence-parallel \
    ${DATA_ARGS[@]}
