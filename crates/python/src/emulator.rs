// SPDX-License-Identifier: Apache-2.0
//! Binding for the S3 emulator: the class `penstock._native.Emulator`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;

use penstock_emulator::{Emulator as Core, Keys, Settings, Stats, Tier};
use penstock_types::{Error, lock};
use pyo3::prelude::*;

use crate::runtime::enter;

/// S3 emulator (see `_native.pyi`). The emulator serves requests on its own threads, which do not hold the GIL.
#[pyclass(module = "penstock._native", frozen)]
pub struct Emulator {
    core: Mutex<Core>,
    endpoint: String,
    url: String,
    keys: Keys,
    region: &'static str,
    tier: String,
    scale: f64,
}

#[pymethods]
impl Emulator {
    #[new]
    #[pyo3(signature = (folder, tier, bind, scale, access_key=None, secret_key=None))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        tier: &str,
        bind: &str,
        scale: f64,
        access_key: Option<String>,
        secret_key: Option<String>,
    ) -> PyResult<Self> {
        let core = enter(py, || {
            let bind: SocketAddr = bind.parse().map_err(|_| {
                Error::config("bind", format!("must be ADDRESS:PORT, such as 127.0.0.1:0 (got `{bind}`)"))
            })?;
            let keys = match (access_key, secret_key) {
                (Some(access), Some(secret)) if !access.is_empty() && !secret.is_empty() => Keys { access, secret },
                (None, None) => Keys::random(),
                _ => return Err(Error::config("keys", "set both an access key and a secret key, or neither")),
            };
            Core::start(Settings { folder, tier: Tier::from_json(tier)?, scale, bind, keys })
        })?;
        Ok(Self {
            endpoint: core.endpoint(),
            url: core.url(),
            keys: core.keys().clone(),
            region: core.region(),
            tier: core.tier(),
            scale: core.scale(),
            core: Mutex::new(core),
        })
    }

    #[getter]
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    #[getter]
    fn access_key(&self) -> &str {
        &self.keys.access
    }

    #[getter]
    fn secret_key(&self) -> &str {
        &self.keys.secret
    }

    #[getter]
    fn region(&self) -> &str {
        self.region
    }

    #[getter]
    fn tier(&self) -> &str {
        &self.tier
    }

    #[getter]
    fn scale(&self) -> f64 {
        self.scale
    }

    fn stats(&self) -> std::collections::HashMap<&'static str, u64> {
        let stats: Stats = lock(&self.core).stats();
        stats.pairs().into_iter().collect()
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || {
            lock(&self.core).stop();
            Ok(())
        })
    }

    fn __repr__(&self) -> String {
        format!("<Emulator of {} at {} ({}, scale {})>", self.url, self.endpoint, self.tier, self.scale)
    }
}
