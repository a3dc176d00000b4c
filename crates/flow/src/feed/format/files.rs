// SPDX-License-Identifier: Apache-2.0
//! Folders of files: an object is one record. Its label is its class folder's number, classes in the order of their names.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_types::Result;

use super::tar::KEY;
use super::{Each, Framing, Record, RecordId, Span};
use crate::feed::part::Part;
use crate::manifest::Manifest;

/// The part that is the file.
const FILE: &str = "image";
/// The part that is the class.
const LABEL: &str = "label";

#[derive(Debug)]
pub(super) struct Files {
    keys: Arc<[Box<[u8]>]>,
    /// The class of each object; empty where they lie in no folders.
    labels: Vec<u32>,
}

impl Files {
    pub(super) fn new(manifest: &Manifest) -> Self {
        let keys: Vec<Box<[u8]>> = manifest.objects.iter().map(|entry| entry.key.as_bytes().into()).collect();
        let class = |key: &[u8]| key.iter().position(|&byte| byte == b'/').map(|slash| key[..slash].to_vec());
        let classes: Vec<Option<Vec<u8>>> = keys.iter().map(|key| class(key)).collect();
        let names: Vec<&Vec<u8>> = classes.iter().flatten().collect::<BTreeSet<_>>().into_iter().collect();
        let number = |class: &Option<Vec<u8>>| Some(names.binary_search(&class.as_ref()?).ok()? as u32);
        // A file beside the folders has no class, and then none has a label.
        let labels = classes.iter().map(number).collect::<Option<Vec<u32>>>().unwrap_or_default();
        Self { keys: keys.into(), labels }
    }
}

impl Framing for Files {
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
        each(&File { bytes, key, label: self.labels.get(at).copied() })
    }
}

struct File<'a> {
    bytes: &'a [u8],
    key: &'a [u8],
    label: Option<u32>,
}

impl Record for File<'_> {
    fn part(&self, name: &str) -> Result<Option<Part<'_>>> {
        Ok(match name {
            FILE => Some(Part::Bytes(Cow::Borrowed(self.bytes))),
            LABEL => self.label.map(|label| Part::Int(i64::from(label))),
            KEY => Some(Part::Bytes(Cow::Borrowed(self.key))),
            _ => None,
        })
    }

    fn names(&self) -> Vec<String> {
        let names = [Some(KEY), Some(FILE), self.label.map(|_| LABEL)];
        names.into_iter().flatten().map(str::to_owned).collect()
    }
}
