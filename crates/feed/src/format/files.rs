// SPDX-License-Identifier: Apache-2.0
//! Folders of files: each object is one record. The label of a record comes from a label file, which is read when the
//! dataset is opened. Without a label file, the label is the number of the record's class folder, in the order of
//! folder names.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use penstock_types::{DType, Error, Result, with_separators};
use serde::{Deserialize, Serialize};

use super::tar::KEY;
use super::{Each, Framing, Record, RecordId};
use crate::value::{Array, Value};
use penstock_dataset::manifest::Manifest;
use penstock_dataset::record_index::Span;

/// Name of the value that contains an image file.
pub(super) const IMAGE: &str = "image";
/// Name of the value that contains a file of any kind.
pub(super) const RECORD: &str = "record";
/// Name of the value that contains the label.
const LABEL: &str = "label";

#[derive(Debug)]
pub(super) struct Files {
    /// Name of the value that contains the file.
    content: &'static str,
    keys: Arc<[Box<[u8]>]>,
    /// Label of each object; empty if neither class folders nor a label file exist.
    labels: Values,
}

/// Content of a label file: the labels of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Labels {
    /// Name of the label file in error messages.
    pub place: String,
    /// Keys of the labelled objects, relative to the dataset's folder.
    pub files: Vec<String>,
    /// Labels of `files`, in the same order.
    pub values: Values,
}

/// Labels of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Values {
    /// Integer labels.
    Int(Vec<i64>),
    /// Floating-point labels.
    Float(Vec<f64>),
    /// Text labels.
    Text(Vec<String>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::Int(values) => values.len(),
            Self::Float(values) => values.len(),
            Self::Text(values) => values.len(),
        }
    }

    /// Returns the labels at these indices. All the indices must exist.
    fn pick(&self, places: &[usize]) -> Self {
        match self {
            Self::Int(values) => Self::Int(places.iter().map(|&at| values[at]).collect()),
            Self::Float(values) => Self::Float(places.iter().map(|&at| values[at]).collect()),
            Self::Text(values) => Self::Text(places.iter().map(|&at| values[at].clone()).collect()),
        }
    }

    fn part(&self, at: usize) -> Option<Value<'_>> {
        Some(match self {
            Self::Int(values) => Value::Int(*values.get(at)?),
            Self::Float(values) => {
                let bytes = Cow::Owned(values.get(at)?.to_le_bytes().to_vec());
                Value::Array(Array { dtype: DType::F64, shape: Vec::new(), bytes })
            }
            Self::Text(values) => Value::Bytes(Cow::Borrowed(values.get(at)?.as_bytes())),
        })
    }
}

/// Maximum number of files without a label that an error lists.
const NAMED: usize = 5;

/// Returns the labels of `keys`, in the same order. Returns an error if a key has no label.
fn label_values(keys: &[Box<[u8]>], labels: &Labels) -> Result<Values> {
    if labels.files.len() != labels.values.len() {
        let (values, files) = (labels.values.len(), labels.files.len());
        return Err(Error::bug(format!("{} has {values} labels for {files} files", labels.place)));
    }
    let mut of: HashMap<&[u8], usize> = HashMap::with_capacity(labels.files.len());
    for (at, file) in labels.files.iter().enumerate() {
        if of.insert(file.as_bytes(), at).is_some() {
            return Err(Error::config("labels", format!("{} lists `{}` twice", labels.place, file.escape_debug())));
        }
    }
    let found: Vec<Option<usize>> = keys.iter().map(|key| of.get(&**key).copied()).collect();
    let missing: Vec<&[u8]> = keys.iter().zip(&found).filter(|(_, at)| at.is_none()).map(|(key, _)| &**key).collect();
    if missing.is_empty() {
        return Ok(labels.values.pick(&found.into_iter().flatten().collect::<Vec<usize>>()));
    }
    let named: Vec<String> = missing.iter().take(NAMED).map(|key| format!("`{}`", key.escape_ascii())).collect();
    let more = if missing.len() > NAMED { ", ..." } else { "" };
    let (count, all) = (with_separators(missing.len() as u64), with_separators(keys.len() as u64));
    let says = labels
        .files
        .first()
        .map(|file| format!("; its first label is for `{}`", file.escape_debug()))
        .unwrap_or_default();
    let (place, named) = (&labels.place, named.join(", "));
    let problem = format!("{place} has no label for {count} of {all} files: {named}{more}{says}");
    Err(Error::config("labels", problem))
}

impl Files {
    pub(super) fn new(content: &'static str, manifest: &Manifest, labels: Option<&Labels>) -> Result<Self> {
        let keys: Vec<Box<[u8]>> = manifest.objects.iter().map(|entry| entry.key.as_bytes().into()).collect();
        if let Some(labels) = labels {
            let labels = label_values(&keys, labels)?;
            return Ok(Self { content, keys: keys.into(), labels });
        }
        let class = |key: &[u8]| key.iter().position(|&byte| byte == b'/').map(|slash| key[..slash].to_vec());
        let classes: Vec<Option<Vec<u8>>> = keys.iter().map(|key| class(key)).collect();
        let names: Vec<&Vec<u8>> = classes.iter().flatten().collect::<BTreeSet<_>>().into_iter().collect();
        let number = |class: &Option<Vec<u8>>| Some(names.binary_search(&class.as_ref()?).ok()? as i64);
        // A file outside the class folders has no class. If there is such a file, no file gets a label.
        let labels = classes.iter().map(number).collect::<Option<Vec<i64>>>().unwrap_or_default();
        Ok(Self { content, keys: keys.into(), labels: Values::Int(labels) })
    }
}

impl Framing for Files {
    fn may_be_empty(&self) -> bool {
        self.content == RECORD
    }

    fn spans(&self, content: &[u8], _place: &str, spans: &mut Vec<Span>) -> Result<()> {
        spans.push(Span { offset: 0, len: content.len() as u64, crc: 0 });
        Ok(())
    }

    fn count_of_size(&self, _bytes: u64, _place: &str) -> Option<Result<u64>> {
        Some(Ok(1))
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        let at = id.object as usize;
        let key = self.keys.get(at).map(|key| &**key).unwrap_or_default();
        each(&File { content: self.content, bytes, key, labels: &self.labels, at })
    }
}

struct File<'a> {
    content: &'static str,
    bytes: &'a [u8],
    key: &'a [u8],
    labels: &'a Values,
    at: usize,
}

impl Record for File<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        Ok(match name {
            name if name == self.content => Some(Value::Bytes(Cow::Borrowed(self.bytes))),
            LABEL => self.labels.part(self.at),
            KEY => Some(Value::Bytes(Cow::Borrowed(self.key))),
            _ => None,
        })
    }

    fn names(&self) -> Vec<String> {
        let names = [Some(KEY), Some(self.content), (self.at < self.labels.len()).then_some(LABEL)];
        names.into_iter().flatten().map(str::to_owned).collect()
    }
}
