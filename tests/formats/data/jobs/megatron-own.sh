torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
  --ffn-hidden-size 5632 --swiglu --tokenizer-type Llama2Tokenizer --seq-length 4096 --micro-batch-size $MBS \
  --overlap-grad-reduce --bf16
