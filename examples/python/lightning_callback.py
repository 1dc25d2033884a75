# SPDX-License-Identifier: Apache-2.0
# A Lightning module within a memory budget, by a callback:
#   python examples/python/lightning_callback.py
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn

import fleet


class BudgetCallback(Callback):
    """Forward and backward of each training step within `budget`; `part` is the net whose forwards count."""

    def __init__(self, budget, part="net"):
        self.budget, self.part = budget, part

    def on_train_start(self, trainer, module):
        self.attachment = self.budget.attach(module.get_submodule(self.part))

    def on_train_end(self, trainer, module):
        self.attachment.remove()


class Encoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), 6)

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return fleet.optim.AdamW(self.parameters(), 1e-3)


if __name__ == "__main__":
    budget = fleet.MemoryBudget("60% of plain")
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[BudgetCallback(budget)])
    trainer.fit(Encoder(), torch.utils.data.DataLoader(torch.randn(48, 64, 64), batch_size=8))
    print(budget.report)
