// SPDX-License-Identifier: Apache-2.0
//! Settings of one storage phase, and their validation.

use std::path::PathBuf;

use penstock_types::{Error, Result, with_separators};
use serde::{Deserialize, Serialize};

use crate::{Arrivals, Schedule};

/// Phase of the storage benchmark. All threads start it together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Creates the folders.
    Mkdirs,
    /// Writes the files of the tree, or the shared file or device.
    Write,
    /// Reads the written data.
    Read,
    /// Reads each file's metadata.
    Stat,
    /// Deletes the files.
    Delete,
    /// Deletes the folders.
    Rmdirs,
}

impl Phase {
    /// Name of the phase in settings and result rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mkdirs => "mkdirs",
            Self::Write => "write",
            Self::Read => "read",
            Self::Stat => "stat",
            Self::Delete => "delete",
            Self::Rmdirs => "rmdirs",
        }
    }
}

/// I/O engine, which sends the reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    /// pread and pwrite: each thread sends one call at a time.
    #[serde(rename = "threads")]
    Threads,
    /// io_uring: one ring per thread, with `depth` requests in flight.
    #[serde(rename = "io_uring")]
    IoUring,
}

/// Order in which the blocks of a file are visited. Each block is visited once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// From the first block to the last.
    Sequential,
    /// In a random order.
    Random,
}

/// Settings of one phase. Sizes are in bytes, times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageSpec {
    /// A folder for a tree of files, or a file or block device that all threads share.
    pub path: PathBuf,
    /// Number of threads.
    pub threads: u32,
    /// Number of folders per thread.
    pub directories: u32,
    /// Number of files in each folder.
    pub files: u64,
    /// Size of each file. For a shared file or device: the number of bytes to use; 0 means all.
    pub file_size: u64,
    /// Size of each read or write.
    pub block_size: u64,
    /// Number of reads or writes in flight per thread.
    pub depth: u32,
    /// I/O engine.
    pub engine: Engine,
    /// Order of the blocks.
    pub pattern: Pattern,
    /// Opens files with O_DIRECT.
    pub direct: bool,
    /// Calls fsync on each written file. The latency of the file includes the time of fsync.
    pub fsync: bool,
    /// If set, read bytes are verified against the content generated with this salt.
    pub verify: Option<u64>,
    /// Percentage of each page that consists of zeros.
    pub compressible: u32,
    /// Ends the phase after this time.
    pub time_limit_s: Option<f64>,
    /// Maximum number of reads or writes per thread; the thread then ends.
    pub io_limit: Option<u64>,
    /// Starts again at the first file until the time limit is reached.
    pub repeat: bool,
    /// Schedule of request start times (closed or open loop).
    pub arrivals: Schedule,
    /// For an open loop: requests per second, summed over all threads.
    pub rate: Option<f64>,
    /// Seed of block orders and arrivals.
    pub seed: u64,
    /// Permits writing to a shared file or device, which overwrites its content.
    pub write_shared: bool,
    /// Common start time of all hosts, in seconds since the Unix epoch.
    pub start_at_s: Option<f64>,
}

const MAX_THREADS: u32 = 4096;
const MAX_DEPTH: u32 = 4096;

impl StorageSpec {
    /// Validates the settings before the target is accessed. Returns `Config` for an invalid one.
    pub fn check(&self) -> Result<()> {
        let within = |what: &str, value: u64, most: u64| match value {
            value if (1..=most).contains(&value) => Ok(()),
            value => Err(Error::config(
                what,
                format!("must be 1 to {} (got {})", with_separators(most), with_separators(value)),
            )),
        };
        within("--threads", u64::from(self.threads), u64::from(MAX_THREADS))?;
        within("--depth", u64::from(self.depth), u64::from(MAX_DEPTH))?;
        within("--directories", u64::from(self.directories), 1 << 20)?;
        within("--files", self.files, 1 << 40)?;
        within("--block-size", self.block_size, 1 << 30)?;
        if self.engine == Engine::Threads && self.depth > 1 {
            return Err(Error::config(
                "--depth",
                format!("{} requires `--engine io_uring`; `--engine threads` supports only 1", self.depth),
            ));
        }
        if self.compressible > 100 {
            return Err(Error::config("--compressible", format!("must be 0 to 100 (got {})", self.compressible)));
        }
        if self.file_size > 0 && self.block_size > self.file_size {
            let (block, file) = (with_separators(self.block_size), with_separators(self.file_size));
            return Err(Error::config("--block-size", format!("{block} bytes exceed the file size ({file} bytes)")));
        }
        if let Some(limit) = self.time_limit_s
            && !(limit.is_finite() && limit > 0.0 && limit <= 1e9)
        {
            return Err(Error::config("--duration", format!("must be a valid duration in seconds (got {limit})")));
        }
        if self.repeat && self.time_limit_s.is_none() && self.io_limit.is_none() {
            return Err(Error::config("--repeat-io", "requires --duration or --io-limit"));
        }
        if self.io_limit == Some(0) {
            return Err(Error::config("--io-limit", "must be at least 1 (got 0)"));
        }
        Arrivals::new(self.arrivals, self.rate, 0, self.threads, self.seed)?;
        self.bytes().map(|_| ())
    }

    /// Returns the number of files of all threads.
    pub fn total_files(&self) -> Result<u64> {
        (u64::from(self.threads) * u64::from(self.directories)).checked_mul(self.files).ok_or_else(too_much)
    }

    /// Returns the total size of all files in bytes.
    pub fn bytes(&self) -> Result<u64> {
        let bytes = self.total_files()?.checked_mul(self.file_size).filter(|bytes| *bytes < 1 << 63);
        bytes.ok_or_else(too_much)
    }
}

fn too_much() -> Error {
    Error::config("--files", "files x directories x threads x file size exceeds the maximum size of a file system")
}
