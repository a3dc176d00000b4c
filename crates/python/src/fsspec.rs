// SPDX-License-Identifier: Apache-2.0
//! Bindings that treat the keys of a store as files: list, stat, ranged read, write and delete. The fsspec adapter and
//! `penstock.arrays` use these bindings.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use penstock_store::{Meta, ObjectRef, Opened, Precondition, PutOptions, StoreSettings, Version, open};
use penstock_types::{ByteRange, Deadline, Error, Key, Result, Url, duration};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::runtime::{enter, enter_async};

/// Name, size in bytes, version, and modification time (seconds since the epoch) of an object.
type Described = (Vec<u8>, u64, Option<String>, Option<f64>);

/// Objects below a URL. Each request has a deadline.
#[pyclass(name = "Files", module = "penstock._native", frozen)]
pub struct PyFiles {
    opened: Arc<Opened>,
    deadline: Duration,
}

impl PyFiles {
    fn key(&self, name: &[u8]) -> Key {
        self.opened.prefix.join(name)
    }

    fn entry_of(&self, meta: Meta) -> Described {
        let key = meta.key.as_bytes();
        let name = key.strip_prefix(self.opened.prefix.as_bytes()).unwrap_or(key).to_vec();
        (name, meta.size, meta.version.map(|version| version.0), meta.modified_s)
    }
}

#[pymethods]
impl PyFiles {
    #[new]
    #[pyo3(signature = (url, env, *, timeout_s=600.0))]
    fn new(py: Python<'_>, url: &str, env: HashMap<String, String>, timeout_s: f64) -> PyResult<Self> {
        enter(py, || {
            let deadline = duration("timeout_s", timeout_s)?;
            let url: Url = url.parse()?;
            let opened = open(&url.as_folder(), &StoreSettings::from_env(&env)?, Default::default())?;
            Ok(Self { opened: Arc::new(opened), deadline })
        })
    }

    /// Lists at most `most` objects whose name begins with `prefix`, in byte order of their names.
    #[pyo3(signature = (prefix, *, most=None))]
    fn described(&self, py: Python<'_>, prefix: &[u8], most: Option<usize>) -> PyResult<Vec<Described>> {
        let (opened, key, deadline) = (self.opened.clone(), self.key(prefix), Deadline::within(self.deadline));
        let found: Vec<Meta> = enter_async(py, async move {
            let mut stream = opened.store.list(&key, None, deadline);
            let mut found = Vec::new();
            while most.is_none_or(|most| found.len() < most) {
                let Some(meta) = stream.try_next().await? else { break };
                found.push(meta);
            }
            Ok(found)
        })?;
        Ok(found.into_iter().map(|meta| self.entry_of(meta)).collect())
    }

    /// Returns the description of one object. Raises `NotFound` if it does not exist.
    fn head(&self, py: Python<'_>, name: &[u8]) -> PyResult<Described> {
        let (opened, key, deadline) = (self.opened.clone(), self.key(name), Deadline::within(self.deadline));
        let meta = enter_async(py, async move { opened.store.head(&key, deadline).await })?;
        Ok(self.entry_of(meta))
    }

    /// Writes one object and returns its version. With `create_only`, raises `PreconditionFailed` if the object exists.
    #[pyo3(signature = (name, data, *, create_only=false, version=None))]
    fn put(
        &self,
        py: Python<'_>,
        name: &[u8],
        data: Vec<u8>,
        create_only: bool,
        version: Option<String>,
    ) -> PyResult<Option<String>> {
        let (opened, key, deadline) = (self.opened.clone(), self.key(name), Deadline::within(self.deadline));
        let precondition = match (create_only, version) {
            (true, _) => Precondition::Absent,
            (false, Some(version)) => Precondition::Matches(Version(version)),
            (false, None) => Precondition::None,
        };
        let options = PutOptions { precondition, ..PutOptions::default() };
        let meta =
            enter_async(py, async move { opened.store.put(&key, vec![Bytes::from(data)], &options, deadline).await })?;
        Ok(meta.version.map(|version| version.0))
    }

    /// Deletes objects. Names that do not exist are ignored.
    fn delete(&self, py: Python<'_>, names: Vec<Vec<u8>>) -> PyResult<()> {
        let (opened, deadline) = (self.opened.clone(), Deadline::within(self.deadline));
        let keys: Vec<Key> = names.iter().map(|name| self.key(name)).collect();
        enter_async(py, async move { opened.store.delete(&keys, deadline).await })
    }

    /// Reads ranges (offset, length) of one object, or of its `version` if given. A range that extends beyond the
    /// object is shortened.
    #[pyo3(signature = (name, ranges, *, version=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        name: &[u8],
        ranges: Vec<(u64, u64)>,
        version: Option<String>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let (opened, deadline) = (self.opened.clone(), Deadline::within(self.deadline));
        let object = ObjectRef { key: self.key(name), version: version.map(Version) };
        let parts = enter_async(py, async move {
            let asked: Vec<ByteRange> = ranges.iter().map(|&(start, len)| ByteRange::new(start, len)).collect();
            let mut got = opened.store.get_ranges(&object, &asked, deadline).await?;
            let mut parts = vec![BytesMut::new(); asked.len()];
            while let Some(chunk) = got.chunks.try_next().await? {
                let part = parts
                    .get_mut(chunk.range)
                    .ok_or_else(|| Error::bug("a chunk does not belong to any requested range"))?;
                part.extend_from_slice(&chunk.bytes);
            }
            Result::Ok(parts)
        })?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }
}
