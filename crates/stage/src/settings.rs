// SPDX-License-Identifier: Apache-2.0
//! JSON settings of a stage and of a verification. Python's `StageSpec` and `VerifySpec` write these documents, and
//! describe the fields. Paths are passed separately, because JSON cannot represent every path.

use std::collections::HashMap;
use std::path::PathBuf;

use penstock_dataset::key_filter::KeyFilter;
use penstock_dataset::{Division, ShareBy, Weights};
use penstock_store::{Rates, StoreSettings};
use penstock_types::{Result, duration, parse_settings};
use serde::Deserialize;

use crate::compress::Compression;
use crate::plan::StageOptions;
use crate::request::StageRequest;
use crate::verify::VerifyRequest;

/// Settings of a stage; `None` selects the core's default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageSettings {
    source: String,
    /// URL of a destination store; replaces the local folder.
    remote: Option<String>,
    mirrors: Vec<String>,
    rank: Rank,
    decompress: bool,
    compress: Option<String>,
    level: Option<i32>,
    concurrency: usize,
    memory_bytes: u64,
    max_inflated_bytes: Option<u64>,
    allow_case_collisions: bool,
    overwrite: bool,
    dry_run: bool,
    select: Vec<String>,
    exclude: Vec<String>,
    share_by: Option<String>,
    weights: Option<String>,
    max_requests_per_s: Option<f64>,
    max_bytes_per_s: Option<f64>,
    timeout_s: Option<f64>,
    object_timeout_s: Option<f64>,
    idle_timeout_s: Option<f64>,
    retry_timeout_s: Option<f64>,
}

/// Position of this process in its launch.
#[derive(Debug, Deserialize)]
struct Rank {
    node: u32,
    nodes: u32,
    local_rank: u32,
    rank: u32,
    world: u32,
    launch_id: Option<String>,
}

/// Settings of a verification.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifySettings {
    remote: Option<String>,
    quick: bool,
    repair: bool,
    concurrency: usize,
    memory_bytes: u64,
    select: Vec<String>,
    exclude: Vec<String>,
    timeout_s: Option<f64>,
    retry_timeout_s: Option<f64>,
}

impl StageSettings {
    /// Parses the JSON document.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is missing, unknown or of the wrong type.
    pub fn from_json(json: &str) -> Result<Self> {
        parse_settings("stage", json)
    }

    /// Validates the settings and returns the request.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is invalid.
    pub fn request(
        self,
        destination: PathBuf,
        manifest: Option<PathBuf>,
        env: &HashMap<String, String>,
    ) -> Result<StageRequest> {
        let rates = Rates {
            requests_per_s: self.max_requests_per_s,
            bytes_per_s: self.max_bytes_per_s,
            in_flight: self.concurrency,
        };
        rates.check()?;
        let mut settings = checksum_settings(env, self.retry_timeout_s)?;
        if let Some(seconds) = self.idle_timeout_s {
            settings.retry.stall_after = duration("--idle-timeout", seconds)?;
        }
        let Rank { node, nodes, local_rank, rank, world, launch_id } = self.rank;
        Ok(StageRequest {
            source: self.source.parse()?,
            mirrors: self.mirrors.iter().map(|url| Ok((url.parse()?, settings.clone()))).collect::<Result<_>>()?,
            settings,
            destination,
            remote: self.remote.as_deref().map(str::parse).transpose()?,
            manifest,
            select: KeyFilter::new(&self.select, &self.exclude)?,
            options: StageOptions {
                decompress: self.decompress,
                node,
                nodes,
                division: Division {
                    by: self.share_by.as_deref().map_or(Ok(ShareBy::default()), str::parse)?,
                    weights: self.weights.as_deref().map_or(Ok(Weights::default()), str::parse)?,
                    decompress: self.decompress,
                },
                concurrency: self.concurrency,
                memory: self.memory_bytes,
                object_deadline: self.object_timeout_s.map(|s| duration("--object-timeout", s)).transpose()?,
                max_inflated: self.max_inflated_bytes,
                allow_case_collisions: self.allow_case_collisions,
                overwrite: self.overwrite,
                compression: self.compress.map(|codec| Compression::new(codec.parse()?, self.level)).transpose()?,
            },
            rates,
            dry_run: self.dry_run,
            deadline: self.timeout_s.map(|s| duration("--timeout", s)).transpose()?,
            launch: launch_id,
            is_awaited: world > nodes,
            leader_rank: rank.saturating_sub(local_rank),
            cores: cores(),
        })
    }
}

impl VerifySettings {
    /// Parses the JSON document.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is missing, unknown or of the wrong type.
    pub fn from_json(json: &str) -> Result<Self> {
        parse_settings("verify", json)
    }

    /// Validates the settings and returns the request.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is invalid.
    pub fn request(self, destination: PathBuf, env: &HashMap<String, String>) -> Result<VerifyRequest> {
        Ok(VerifyRequest {
            destination,
            remote: self.remote.as_deref().map(str::parse).transpose()?,
            quick: self.quick,
            select: KeyFilter::new(&self.select, &self.exclude)?,
            repair: self.repair,
            settings: checksum_settings(env, self.retry_timeout_s)?,
            deadline: self.timeout_s.map(|s| duration("--timeout", s)).transpose()?,
            cores: cores(),
            concurrency: self.concurrency,
            memory: self.memory_bytes,
        })
    }
}

/// Store settings for copies, in which every byte is verified. Unless the environment overrides these settings, enables
/// MD5 checks for stores without a CRC, and checks of composite multipart checksums.
fn checksum_settings(env: &HashMap<String, String>, retry_timeout_s: Option<f64>) -> Result<StoreSettings> {
    let mut settings = StoreSettings::from_env(env)?.with_retry_timeout(retry_timeout_s)?;
    settings.s3.verifies_md5 |= !env.contains_key("PENSTOCK_S3_MD5");
    settings.s3.verifies_parts |= !env.contains_key("PENSTOCK_S3_PARTS");
    Ok(settings)
}

/// Number of cores for this process, from its affinity and its cgroup's quota.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
