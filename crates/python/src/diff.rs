// SPDX-License-Identifier: Apache-2.0
//! Bindings for `penstock diff`: compares two datasets. Each dataset is given as a manifest, a staged folder, or a URL
//! that can be listed.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use penstock_dataset::{Entry, KeyFilter, Manifest, list};
use penstock_stage::{recorded_manifest, recorded_remotely};
use penstock_store::StoreSettings;
use penstock_types::{Deadline, Error, Key, Metrics, Result, Scheme, Url, duration};
use pyo3::prelude::*;

use crate::runtime::enter_async;

/// Compares `a` with `b`. Returns the difference as JSON.
#[pyfunction]
#[pyo3(signature = (
    a, b, env, *, timeout_s=None, retry_timeout_s=None, select=Vec::new(), exclude=Vec::new()
))]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
pub fn diff(
    py: Python<'_>,
    a: String,
    b: String,
    env: HashMap<String, String>,
    timeout_s: Option<f64>,
    retry_timeout_s: Option<f64>,
    select: Vec<String>,
    exclude: Vec<String>,
) -> PyResult<String> {
    enter_async(py, async move {
        let select = KeyFilter::new(&select, &exclude)?;
        let settings = StoreSettings::from_env(&env)?.with_retry_timeout(retry_timeout_s)?;
        let deadline = timeout_s.map_or(Ok(Deadline::NEVER), |s| duration("--timeout", s).map(Deadline::within))?;
        let (old, old_is) = manifest_of(&a, &select, &settings, deadline).await?;
        let (new, new_is) = manifest_of(&b, &select, &settings, deadline).await?;
        let found = penstock_dataset::diff(&old, &new);
        let side = |manifest: &Manifest, what: &str| serde_json::json!({"url": manifest.url, "read_as": what, "objects": manifest.objects.len()});
        let bug = |error: serde_json::Error| Error::bug(error.to_string());
        let mut facts = serde_json::json!({
            "schema_version": 2,
            "a": side(&old, old_is),
            "b": side(&new, new_is),
            "is_same": found.is_same(),
        });
        if let (Some(facts), serde_json::Value::Object(found)) =
            (facts.as_object_mut(), serde_json::to_value(&found).map_err(bug)?)
        {
            facts.extend(found);
        }
        serde_json::to_string(&facts).map_err(bug)
    })
}

/// Returns the manifest of one of the two datasets, and its origin: `stage`, `manifest` or `listing`.
async fn manifest_of(
    place: &str,
    select: &KeyFilter,
    settings: &StoreSettings,
    deadline: Deadline,
) -> Result<(Manifest, &'static str)> {
    let url: Url = place.parse()?;
    if let Some(path) = url.to_path() {
        if path.is_dir()
            && let Some(manifest) = recorded_manifest(&path)?
        {
            return Ok((manifest.keep(select), "stage"));
        }
        if is_manifest(&path) {
            return Ok((Manifest::load(&path)?.keep(select), "manifest"));
        }
    }
    // An object that a writer recorded may be missing here without an error, because the comparison reports it.
    let listed = list(&url, select.clone().accepting_missing(), settings, Arc::<Metrics>::default(), deadline).await?;
    let is_web = matches!(url.scheme, Scheme::Http | Scheme::Https | Scheme::File);
    if is_web || listed.url != url.as_folder().to_string() {
        return Ok((listed, "listing"));
    }
    match recorded_remotely(&url, settings, Arc::<Metrics>::default(), deadline).await? {
        Some(recorded) => Ok((standing(recorded, listed), "stage")),
        None => Ok((listed, "listing")),
    }
}

/// Manifest of the objects that a staged copy contains now. For an object that has not changed since the stage, the
/// manifest has the entry that the stage recorded.
fn standing(recorded: Manifest, listed: Manifest) -> Manifest {
    let known: HashMap<&Key, &Entry> = recorded.objects.iter().map(|entry| (&entry.key, entry)).collect();
    let objects = listed.objects.into_iter().map(|entry| match known.get(&entry.key) {
        Some(known) if known.size == entry.size && known.version == entry.version => (*known).clone(),
        _ => entry,
    });
    let objects = objects.collect();
    Manifest { source: recorded.source.clone(), ..Manifest::new(listed.url, objects) }
}

fn is_manifest(path: &Path) -> bool {
    const BEGIN: &[u8] = b"{\"penstock_manifest\"";
    const PARQUET: &[u8] = b"PAR1";
    let mut head = Vec::with_capacity(64);
    let read = std::fs::File::open(path).and_then(|file| file.take(64).read_to_end(&mut head));
    // White space differs between JSON writers.
    head.retain(|byte| !byte.is_ascii_whitespace());
    path.is_file() && read.is_ok() && (head.starts_with(BEGIN) || head.starts_with(PARQUET))
}
