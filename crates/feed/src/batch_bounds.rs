// SPDX-License-Identifier: Apache-2.0
//! Arithmetic of an epoch's batches: their size, the slice of a rank, and the last samples. Uses only counts and
//! positions, not the sample order.

use std::ops::Range;
use std::str::FromStr;

use penstock_types::{Error, Result};

/// How the last samples of an epoch are handled if they do not fill a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The last samples form a smaller batch, so every sample is delivered exactly once. The ranks' slices of the
    /// smaller batch differ by at most one row, and some slices may be empty.
    Ragged,
    /// The last samples are dropped, so all batches are full.
    Drop,
    /// The last batch is filled with samples from the start of the epoch. These samples have weight 0.
    Pad,
}

impl FromStr for Tail {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "ragged" => Ok(Self::Ragged),
            "drop" => Ok(Self::Drop),
            "pad" => Ok(Self::Pad),
            other => Err(Error::config("tail", format!("`{other}` is not one of ragged, drop, pad"))),
        }
    }
}

/// Batches of one epoch, or of the rest of an epoch after `cursor`. Batch k has the positions
/// `cursor + k * B .. cursor + (k + 1) * B`, where B is `global_batch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Number of samples in the epoch.
    pub samples: u64,
    /// Position of the first sample of the first batch.
    pub cursor: u64,
    /// Number of samples per batch, over all ranks.
    pub global_batch: u64,
    /// Rank of this process.
    pub rank: u64,
    /// Number of ranks.
    pub world: u64,
    /// How the last samples are handled if they do not fill a batch.
    pub tail: Tail,
}

impl Steps {
    /// Returns an error if the numbers are inconsistent.
    pub fn check(&self) -> Result<()> {
        if self.global_batch == 0 {
            return Err(Error::config("global_batch", "0 is not a valid batch size"));
        }
        if self.world == 0 || self.rank >= self.world {
            return Err(Error::config(
                "rank",
                format!("must be less than the number of ranks ({} ranks, got {})", self.world, self.rank),
            ));
        }
        if self.cursor > self.samples {
            return Err(Error::config(
                "cursor",
                format!("position {} is beyond the end of the epoch ({} samples)", self.cursor, self.samples),
            ));
        }
        Ok(())
    }

    /// Number of batches, which is the same on every rank.
    pub fn count(&self) -> u64 {
        let left = self.samples - self.cursor;
        match self.tail {
            Tail::Drop => left / self.global_batch,
            Tail::Ragged | Tail::Pad => left.div_ceil(self.global_batch),
        }
    }

    /// Position in the epoch after the delivery of batch `k`. All samples at earlier positions are delivered.
    pub fn cursor_after(&self, k: u64) -> u64 {
        self.cursor.saturating_add((k + 1).saturating_mul(self.global_batch)).min(self.samples)
    }

    /// Positions of batch `k` on all ranks. In a padded tail, positions extend beyond `samples`.
    pub fn batch(&self, k: u64) -> Range<u64> {
        let start = self.cursor + k * self.global_batch;
        let end = start.saturating_add(self.global_batch);
        start..if self.tail == Tail::Pad { end } else { end.min(self.samples) }
    }

    /// Positions of batch `k` on this rank. They are contiguous. The numbers of positions of two ranks differ by at
    /// most one.
    pub fn slice(&self, k: u64) -> Range<u64> {
        let Range { start, end } = self.batch(k);
        let cut = |rank: u64| start + (u128::from(end - start) * u128::from(rank) / u128::from(self.world)) as u64;
        cut(self.rank)..cut(self.rank + 1)
    }

    /// Maximum number of rows of a batch on this rank.
    pub fn max_rows(&self) -> u64 {
        // A padded batch always has `global_batch` rows. A batch that is not padded cannot have more rows than the
        // epoch has samples.
        let most = if self.tail == Tail::Pad { self.global_batch } else { self.global_batch.min(self.samples) };
        most.div_ceil(self.world)
    }
}
