// SPDX-License-Identifier: Apache-2.0
//! Bindings for `penstock index`: lists a dataset once, writes its manifest, and returns a summary.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use penstock_dataset::{KeyFilter, ManifestFormat, list};
use penstock_store::StoreSettings;
use penstock_types::{Deadline, Error, Metric, Metrics, Url, duration};
use pyo3::prelude::*;

use crate::runtime::enter_async;

/// Lists `url` and writes its manifest to `output`. Returns the summary as JSON.
#[pyfunction]
#[pyo3(signature = (
    url, env, *, output=None, timeout_s=None, retry_timeout_s=None, select=Vec::new(), exclude=Vec::new(), written_as=None
))]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
pub fn index(
    py: Python<'_>,
    url: String,
    env: HashMap<String, String>,
    output: Option<PathBuf>,
    timeout_s: Option<f64>,
    retry_timeout_s: Option<f64>,
    select: Vec<String>,
    exclude: Vec<String>,
    written_as: Option<String>,
) -> PyResult<String> {
    enter_async(py, async move {
        let url: Url = url.parse()?;
        let select = KeyFilter::new(&select, &exclude)?;
        let settings = StoreSettings::from_env(&env)?.with_retry_timeout(retry_timeout_s)?;
        let deadline = timeout_s.map_or(Ok(Deadline::NEVER), |s| duration("--timeout", s).map(Deadline::within))?;
        let metrics = Arc::<Metrics>::default();
        let manifest = list(&url, select, &settings, metrics.clone(), deadline).await?;
        let format = match (&output, written_as) {
            (_, Some(text)) => text.parse()?,
            (Some(path), None) => ManifestFormat::of_file(path, manifest.objects.len()),
            (None, None) => ManifestFormat::for_objects(manifest.objects.len()),
        };
        if let Some(path) = &output {
            manifest.save_as(path, format)?;
        }
        let mut codecs: BTreeMap<&str, u64> = BTreeMap::new();
        let mut formats: BTreeMap<&str, u64> = BTreeMap::new();
        for entry in &manifest.objects {
            *codecs.entry(entry.codec.name()).or_default() += 1;
            *formats.entry(entry.format.name()).or_default() += 1;
        }
        let facts = serde_json::json!({
            "schema_version": 1,
            "url": manifest.url,
            "objects": manifest.objects.len(),
            "bytes": manifest.bytes(),
            "codecs": codecs,
            "formats": formats,
            "fingerprint": format!("{:032x}", manifest.fingerprint(&[])),
            "requests": metrics.get(Metric::Requests),
            "format": output.as_ref().map(|_| format.name()),
            "manifest": output.map(|path| path.display().to_string()),
        });
        serde_json::to_string(&facts).map_err(|error| Error::bug(error.to_string()))
    })
}
