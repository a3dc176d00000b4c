// SPDX-License-Identifier: Apache-2.0
//! One object written to a store, for outputs of a run.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use penstock_store::{PutOptions, StoreSettings, open};
use penstock_types::{Deadline, Url};
use pyo3::prelude::*;

use crate::enter::{enter, enter_async};

/// By when one object must be written, retries and back-off included.
const LIMIT: Duration = Duration::from_secs(600);

/// Writes `data` under `name` below the folder or prefix that `url` names, whole or not at all.
#[pyfunction]
pub fn put_object(py: Python<'_>, url: &str, name: &str, data: &[u8], env: HashMap<String, String>) -> PyResult<()> {
    let (url, data) = (url.to_owned(), Bytes::copy_from_slice(data));
    let opened = enter(py, move || {
        let url: Url = url.parse()?;
        open(&url.as_folder(), &StoreSettings::from_env(&env)?, Default::default())
    })?;
    let key = opened.prefix.join(name.as_bytes());
    enter_async(py, async move {
        let store = opened.store;
        store.put(&key, vec![data], &PutOptions::default(), Deadline::within(LIMIT)).await.map(drop)
    })
}
