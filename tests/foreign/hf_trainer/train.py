"""Train a tiny GPT-2 on random text with the Hugging Face Trainer."""
import json
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


class Numbers(torch.utils.data.Dataset):
    def __init__(self, n=256, length=16):
        g = torch.Generator().manual_seed(0)
        self.data = torch.randint(0, 64, (n, length), generator=g)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return {"input_ids": self.data[i], "labels": self.data[i]}


def main():
    parser = HfArgumentParser(TrainingArguments)
    if len(sys.argv) >= 2 and sys.argv[1].endswith(".json"):
        values = json.load(open(sys.argv[1]))
        (args,) = parser.parse_dict(values)
        resume = sys.argv[sys.argv.index("--resume_from_checkpoint") + 1] if len(sys.argv) > 2 else None
    else:
        (args,) = parser.parse_args_into_dataclasses()
        resume = args.resume_from_checkpoint
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
    trainer = Trainer(model=model, args=args, train_dataset=Numbers())
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()


if __name__ == "__main__":
    main()
