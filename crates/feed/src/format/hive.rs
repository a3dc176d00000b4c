// SPDX-License-Identifier: Apache-2.0
//! Hive partitions: columns whose values are in the folder names of a table's objects (`year=2024/month=03/f.parquet`).
//!
//! Owns the rules for names and values, which are the rules of Hive, Spark and Arrow. Names and values are
//! percent-decoded. `__HIVE_DEFAULT_PARTITION__` is a null. A column is int64 if all of its values are integers;
//! otherwise, it is text. If the object itself has a column of the same name, that column is used instead.

use std::borrow::Cow;
use std::collections::BTreeMap;

use penstock_types::{DType, Key, Result, TensorSpec};
use percent_encoding::percent_decode;

use super::Record;
use crate::field::Kind;
use crate::value::Value;
use penstock_dataset::manifest::Manifest;

/// Value that Hive uses for a null.
const NULL: &[u8] = b"__HIVE_DEFAULT_PARTITION__";

/// Maximum number of partition columns. A path with more `NAME=VALUE` folders is not a partition.
const MAX_COLUMNS: usize = 32;

/// Partition columns of a dataset, by name.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    columns: BTreeMap<String, Column>,
}

/// Facts about the values of a partition column in all objects.
#[derive(Debug, Default)]
struct Column {
    values: usize,
    has_nulls: bool,
    has_text: bool,
}

/// Value of a partition column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartitionValue {
    Int(i64),
    Text(Vec<u8>),
    Null,
}

/// Returns the name and the value of each `NAME=VALUE` folder of a key, decoded. The value `None` is a null.
fn folders(key: &Key) -> impl Iterator<Item = (String, Option<Cow<'_, [u8]>>)> {
    let bytes = key.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    bytes[..end].split(|byte| *byte == b'/').filter_map(|folder| {
        let at = folder.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
        let name = percent_decode(&folder[..at]).decode_utf8().ok()?.into_owned();
        let value = (&folder[at + 1..] != NULL).then(|| percent_decode(&folder[at + 1..]).into());
        Some((name, value))
    })
}

/// Parses a decimal integer. Rejects a leading `+`, spaces and separators.
fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

impl Partitions {
    /// Finds the partition columns of a listing.
    pub fn of(manifest: &Manifest) -> Self {
        let mut columns: BTreeMap<String, Column> = BTreeMap::new();
        let mut last: Option<&[u8]> = None;
        let mut objects = 0;
        for entry in &manifest.objects {
            let end = entry.key.as_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            let folder = &entry.key.as_bytes()[..end];
            // The objects of a folder are adjacent in the listing, so most folders are parsed only once.
            let is_new = last != Some(folder);
            last = Some(folder);
            objects += usize::from(is_new);
            if !is_new || !folder.contains(&b'=') {
                continue;
            }
            // If a path contains a name more than once, the last value is used.
            for (name, value) in folders(&entry.key).collect::<BTreeMap<_, _>>() {
                let column = columns.entry(name).or_default();
                column.values += 1;
                column.has_nulls |= value.is_none();
                column.has_text |= value.is_some_and(|value| integer(&value).is_none());
            }
        }
        if columns.len() > MAX_COLUMNS {
            columns.clear();
        }
        // An object outside the folders of a column has a null in that column.
        columns.values_mut().for_each(|column| column.has_nulls |= column.values < objects);
        Self { columns }
    }

    /// Returns the values of an object's partition columns.
    pub fn values(&self, key: &Key) -> Vec<(&str, PartitionValue)> {
        if self.columns.is_empty() {
            return Vec::new();
        }
        let mut found: BTreeMap<String, Option<Cow<'_, [u8]>>> = folders(key).collect();
        let mut value = |name: &str, column: &Column| match found.remove(name).flatten() {
            None => PartitionValue::Null,
            Some(text) if column.has_text => PartitionValue::Text(text.into_owned()),
            Some(text) => integer(&text).map_or(PartitionValue::Null, PartitionValue::Int),
        };
        self.columns.iter().map(|(name, column)| (name.as_str(), value(name, column))).collect()
    }

    /// Returns the columns as (name, kind of the default field, true if some objects have a null, description).
    pub fn proposed(&self) -> impl Iterator<Item = (&str, Kind, bool, String)> {
        self.columns.iter().map(|(name, column)| {
            let int64 = Kind::Tensor(TensorSpec { dtype: DType::I64, shape: Vec::new() });
            let (kind, what) = if column.has_text { (Kind::Bytes, "text") } else { (int64, "int64") };
            (name.as_str(), kind, column.has_nulls, format!("{what}, a Hive partition in the folder names"))
        })
    }
}

/// A record that also has the partition values of its object.
pub(crate) struct Partitioned<'a> {
    pub record: &'a dyn Record,
    pub values: &'a [(&'a str, PartitionValue)],
}

impl Record for Partitioned<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let found = self.record.part(name)?;
        if found.is_some() {
            return Ok(found);
        }
        let value = self.values.iter().find(|(column, _)| *column == name).map(|(_, value)| value);
        Ok(value.map(|value| match value {
            PartitionValue::Int(value) => Value::Int(*value),
            PartitionValue::Text(text) => Value::Text(Cow::Borrowed(text)),
            PartitionValue::Null => Value::Null,
        }))
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.record.names();
        names.extend(self.values.iter().map(|(name, _)| (*name).to_owned()));
        names
    }

    fn check(&self) -> Result<()> {
        self.record.check()
    }

    fn may_lack_parts(&self) -> bool {
        self.record.may_lack_parts()
    }

    fn takes_defaults(&self) -> bool {
        self.record.takes_defaults()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_dataset::manifest::Entry;
    use proptest::prelude::*;

    fn of(keys: &[&str]) -> (Partitions, Manifest) {
        let objects = keys.iter().map(|key| Entry::new(Key::from(*key), 1)).collect();
        let manifest = Manifest::new("memory://hive/".to_owned(), objects);
        (Partitions::of(&manifest), manifest)
    }

    fn shown(partitions: &Partitions, key: &str) -> Vec<(String, PartitionValue)> {
        let found = partitions.values(&Key::from(key));
        found.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn partition_values_are_decoded_and_integers_only_if_all_are() {
        let (found, _) = of(&["y=a%2Fb/m=03/f", "y=c/m=-11/f", "y=__HIVE_DEFAULT_PARTITION__/m=7/f"]);
        let text = |text: &str| PartitionValue::Text(text.into());
        let named = |m, y| vec![("m".to_owned(), PartitionValue::Int(m)), ("y".to_owned(), y)];
        assert_eq!(shown(&found, "y=a%2Fb/m=03/f"), named(3, text("a/b")));
        assert_eq!(shown(&found, "y=__HIVE_DEFAULT_PARTITION__/m=7/f"), named(7, PartitionValue::Null));
        let nulls: Vec<(&str, bool)> = found.proposed().map(|(name, _, nulls, _)| (name, nulls)).collect();
        assert_eq!(nulls, [("m", false), ("y", true)]);
        let (found, _) = of(&["m=03/f", "m=4x/f", "f"]);
        assert_eq!(shown(&found, "m=03/f"), [("m".to_owned(), text("03"))]);
        assert_eq!(shown(&found, "f"), [("m".to_owned(), PartitionValue::Null)]);
        assert!(found.proposed().all(|(_, _, nulls, _)| nulls));
        for keys in [&["=/f", "a=1/f"][..], &["a=1/a=2/f", "f"]] {
            let (found, _) = of(keys);
            assert!(found.proposed().all(|(_, kind, nulls, _)| nulls && kind != Kind::Bytes), "{keys:?}");
        }
        for keys in [&["a/f=1.parquet"][..], &["=x/f"], &["a=9223372036854775808/f"]] {
            let (found, _) = of(keys);
            assert!(found.proposed().all(|(_, kind, ..)| kind == Kind::Bytes), "{keys:?}");
        }
    }

    proptest! {
        #[test]
        fn prop_partitions_of_any_keys_do_not_panic(keys in prop::collection::vec("[a=%/0-9\\-]{0,12}", 0..8)) {
            let (found, manifest) = of(&keys.iter().map(String::as_str).collect::<Vec<_>>());
            for entry in &manifest.objects {
                let values = found.values(&entry.key);
                prop_assert_eq!(values.len(), found.proposed().count());
            }
        }
    }
}
