#!/usr/bin/python3
"""Loads a checkpoint with Hugging Face transformers and compares its logits with ours.

It passes if transformers finds every tensor it wants in the checkpoint and nothing it does not know, if the logits of a
prompt agree within --bound (of the largest logit), and if its loss on the prompt is the loss that our logits give. How
to install what it needs: tools/README.md.
"""
import argparse
import json
import subprocess
import sys

TRANSFORMERS_VERSION = "4.30.2"  # the last line that runs with Debian 12's PyTorch 1.13
PROMPT = "It was the best of times, it was the worst of times,\n"


def our_logits(print_logits, checkpoint, prompt):
    out = subprocess.run([print_logits, checkpoint, prompt], check=True, stdout=subprocess.PIPE).stdout
    answer = json.loads(out)
    return answer["tokens"], answer["logits"]


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("print_logits", help="BUILD/tests/unit/model/print_logits")
    args.add_argument("checkpoint", help="a checkpoint's folder")
    args.add_argument("--prompt", default=PROMPT)
    args.add_argument("--bound", type=float, default=1e-5, help="largest difference over largest logit")
    args = args.parse_args()

    import torch
    import transformers

    if transformers.__version__ != TRANSFORMERS_VERSION:
        print(f"transformers {transformers.__version__}, and this was made for {TRANSFORMERS_VERSION}", file=sys.stderr)
        return 2
    model, info = transformers.GPT2LMHeadModel.from_pretrained(
        args.checkpoint, output_loading_info=True, local_files_only=True)
    model.eval()
    wrong = {k: v for k, v in info.items() if v}
    tied = model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()

    tokens, ours = our_logits(args.print_logits, args.checkpoint, args.prompt)
    ours = torch.tensor(ours)
    with torch.no_grad():
        ids = torch.tensor([tokens])
        theirs = model(ids, labels=ids)
    logits = theirs.logits[0]
    difference = (ours - logits).abs().max().item()
    largest = logits.abs().max().item()
    loss = torch.nn.functional.cross_entropy(ours[:-1], ids[0, 1:]).item() if len(tokens) > 1 else 0.0
    loss_difference = abs(loss - theirs.loss.item()) if len(tokens) > 1 else 0.0
    ok = not wrong and tied and difference <= args.bound * largest and loss_difference <= args.bound * abs(loss)
    print(json.dumps({"ok": ok, "transformers": transformers.__version__, "torch": torch.__version__,
                      "tokens": len(tokens), "largest_difference": difference, "largest_logit": largest,
                      "loss": loss, "loss_difference": loss_difference, "lm_head_tied": tied, "loading": wrong}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
