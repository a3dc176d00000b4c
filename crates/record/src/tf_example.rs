// SPDX-License-Identifier: Apache-2.0
//! tf.Example, a map from names to features: parses a record in place, and encodes features in the given order.
//!
//! Parsing follows protobuf's own rules, because any conforming writer may have produced the bytes. Fields may be in
//! any order, the last of two equal names wins, two pieces of a message are merged, unknown fields are skipped, and
//! lists may be packed. A feature without a kind counts as missing, as in TensorFlow.

use std::collections::HashMap;

use penstock_types::{Error, Result, TensorSpec};

use crate::protobuf::{Message, Problem, Value, field_len, put_len, put_varint, varint_len};
pub use crate::tf_feature::{Feature, Floats, Ints};

/// Maximum number of feature names that an error lists if the requested feature is missing.
const NAMES_SHOWN: usize = 8;

/// All features of one record. To read one or two features, [`find_feature`] and [`read_feature_into`] are faster.
#[derive(Debug, Clone, PartialEq)]
pub struct Example<'a> {
    features: Vec<(&'a str, Feature<'a>)>,
}

impl<'a> Example<'a> {
    /// Parses `payload`; `place` names the record in messages.
    pub fn parse(payload: &'a [u8], place: &str) -> Result<Self> {
        let mut features: Vec<(&'a str, Option<Feature<'a>>)> = Vec::new();
        let mut known = HashMap::new();
        each_entry(payload, |entry| {
            let name = std::str::from_utf8(entry_name(entry)?).map_err(|_| "has a feature whose name is not UTF-8")?;
            let feature = entry_feature(entry)?;
            match known.get(name) {
                Some(&at) => {
                    let slot: &mut (&str, Option<Feature<'a>>) = &mut features[at];
                    slot.1 = feature;
                }
                None => {
                    known.insert(name, features.len());
                    features.push((name, feature));
                }
            }
            Ok(())
        })
        .map_err(|problem| not_an_example(place, problem))?;
        let features = features.into_iter().filter_map(|(name, feature)| Some((name, feature?))).collect();
        Ok(Self { features })
    }

    /// All features, in the order in which their names first occur.
    pub fn features(&self) -> &[(&'a str, Feature<'a>)] {
        &self.features
    }

    /// Returns the feature with this name.
    pub fn get(&self, name: &str) -> Option<&Feature<'a>> {
        self.features.iter().find(|(known, _)| *known == name).map(|(_, feature)| feature)
    }
}

fn not_an_example(place: &str, problem: Problem) -> Error {
    not_of_kind(place, "tf.Example", problem)
}

pub(crate) fn not_of_kind(place: &str, kind: &str, problem: Problem) -> Error {
    Error::corrupt(place, format!("is not a {kind}: it {problem}"))
}

/// Calls `entry` with each entry of the map `Example.features.feature`, in order.
fn each_entry<'a>(payload: &'a [u8], mut entry: impl FnMut(&'a [u8]) -> Result<(), Problem>) -> Result<(), Problem> {
    let mut example = Message::new(payload);
    while let Some(field) = example.next()? {
        let (1, Value::Bytes(features)) = field else { continue };
        let mut features = Message::new(features);
        while let Some(field) = features.next()? {
            if let (1, Value::Bytes(bytes)) = field {
                entry(bytes)?;
            }
        }
    }
    Ok(())
}

/// Returns the key of an entry; a missing key counts as empty.
pub(crate) fn entry_name(entry: &[u8]) -> Result<&[u8], Problem> {
    let (mut fields, mut name) = (Message::new(entry), &[][..]);
    while let Some(field) = fields.next()? {
        if let (1, Value::Bytes(bytes)) = field {
            name = bytes;
        }
    }
    Ok(name)
}

fn entry_feature(entry: &[u8]) -> Result<Option<Feature<'_>>, Problem> {
    let (mut fields, mut feature) = (Message::new(entry), None);
    while let Some(field) = fields.next()? {
        if let (2, Value::Bytes(message)) = field {
            feature = Feature::merge(feature, message)?;
        }
    }
    Ok(feature)
}

fn find<'a>(payload: &'a [u8], name: &str) -> Result<Option<Feature<'a>>, Problem> {
    // Parse only the last entry with this name; otherwise, many entries with equal names would all be parsed.
    let mut last = None;
    each_entry(payload, |entry| {
        if entry_name(entry)? == name.as_bytes() {
            last = Some(entry);
        }
        Ok(())
    })?;
    last.map_or(Ok(None), entry_feature)
}

/// Finds the feature `name` of a record; `None` if the feature is missing.
pub fn find_feature<'a>(payload: &'a [u8], name: &str) -> Result<Option<Feature<'a>>> {
    find(payload, name).map_err(|problem| not_an_example("a record", problem))
}

/// Writes the feature `name` of a record to `out`, the record's batch slot, as `spec` requires. A bytes_list with one
/// value is copied as elements in memory order (little-endian, C order). A float_list becomes float32 or float64. An
/// int64_list becomes any integer type that can hold its values. `place` names the record in messages.
///
/// # Errors
/// [`Error::Corrupt`] if the record lacks the feature, or the feature has another kind or length.
pub fn read_feature_into(payload: &[u8], name: &str, spec: &TensorSpec, out: &mut [u8], place: &str) -> Result<()> {
    if out.len() != spec.size_bytes()? {
        return Err(Error::bug(format!("the slot for feature `{name}` has the wrong size ({} bytes)", out.len())));
    }
    let found = find(payload, name).map_err(|problem| not_an_example(place, problem))?;
    let Some(feature) = found else {
        return Err(Error::corrupt(place, format!("has no feature `{name}` ({})", names(payload))));
    };
    feature.write(spec, out).map_err(|problem| feature_error(place, name, &problem))
}

fn feature_error(place: &str, name: &str, problem: &str) -> Error {
    Error::corrupt(place, format!("feature `{name}` {problem}"))
}

/// Lists the names of a record's features, for a message.
fn names(payload: &[u8]) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut count = 0usize;
    let walked = each_entry(payload, |entry| {
        count += 1;
        if shown.len() < NAMES_SHOWN {
            let name = entry_name(entry)?;
            shown.push(format!("`{}`", name[..name.len().min(64)].escape_ascii()));
        }
        Ok(())
    });
    match (walked, count) {
        (Ok(()), 0) => "the record has 0 features".to_owned(),
        (Ok(()), count) if count > shown.len() => {
            format!("its features: {} and {} more", shown.join(", "), count - shown.len())
        }
        _ => format!("its features: {}", shown.join(", ")),
    }
}

/// Value of a feature to encode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeatureValue<'a> {
    /// A `bytes_list` with one value.
    Bytes(&'a [u8]),
    /// A `bytes_list`.
    BytesList(&'a [&'a [u8]]),
    /// A `float_list`.
    Floats(&'a [f32]),
    /// An `int64_list`.
    Ints(&'a [i64]),
}

impl FeatureValue<'_> {
    /// Field number of the list in `Feature`, and the length of the list's message.
    fn list(&self) -> (u32, usize) {
        let packed = |len: usize| if len == 0 { 0 } else { field_len(len) };
        match self {
            Self::Bytes(value) => (1, field_len(value.len())),
            Self::BytesList(values) => (1, values.iter().map(|value| field_len(value.len())).sum()),
            Self::Floats(values) => (2, packed(4 * values.len())),
            Self::Ints(values) => (3, packed(ints_len(values))),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let bytes = |value: &[u8], out: &mut Vec<u8>| {
            put_len(1, value.len(), out);
            out.extend_from_slice(value);
        };
        match self {
            Self::Bytes(value) => bytes(value, out),
            Self::BytesList(values) => values.iter().for_each(|value| bytes(value, out)),
            Self::Floats([]) | Self::Ints([]) => {}
            Self::Floats(values) => {
                put_len(1, 4 * values.len(), out);
                let start = out.len();
                out.resize(start + 4 * values.len(), 0);
                for (slot, value) in out[start..].as_chunks_mut::<4>().0.iter_mut().zip(values.iter()) {
                    *slot = value.to_le_bytes();
                }
            }
            Self::Ints(values) => {
                put_len(1, ints_len(values), out);
                values.iter().for_each(|&value| put_varint(value as u64, out));
            }
        }
    }
}

fn ints_len(values: &[i64]) -> usize {
    values.iter().map(|&value| varint_len(value as u64)).sum()
}

/// Encodes a tf.Example with these features in this order, so that equal features give equal bytes. (TensorFlow's own
/// writer orders map entries arbitrarily.) Names must be distinct: of two features with equal names, readers return the
/// last one.
pub fn encode_example(features: &[(&str, FeatureValue<'_>)]) -> Vec<u8> {
    let mut out = Vec::new();
    append_example(features, &mut out);
    out
}

/// Appends the encoded tf.Example to `out`, as [`encode_example`] returns it.
pub fn append_example(features: &[(&str, FeatureValue<'_>)], out: &mut Vec<u8>) {
    let entry_len = |name: &str, value: &FeatureValue<'_>| {
        let (_, list) = value.list();
        field_len(name.len()) + field_len(field_len(list))
    };
    let all = features.iter().map(|(name, value)| field_len(entry_len(name, value))).sum();
    out.reserve(field_len(all));
    put_len(1, all, out);
    for (name, value) in features {
        let (field, list) = value.list();
        put_len(1, entry_len(name, value), out);
        put_len(1, name.len(), out);
        out.extend_from_slice(name.as_bytes());
        put_len(2, field_len(list), out);
        put_len(field, list, out);
        value.write(out);
    }
}
