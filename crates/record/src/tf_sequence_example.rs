// SPDX-License-Identifier: Apache-2.0
//! tf.SequenceExample: a context, which is parsed like a tf.Example, and lists of features with one feature per step.
//!
//! Follows the same rules as tf.Example: fields may be in any order, the last of two equal names wins, two pieces of a
//! message are merged, and unknown fields are skipped.

use penstock_types::{Error, Result};

use crate::protobuf::{Message, Problem, Value};
use crate::tf_example::{entry_name, not_of_kind};
use crate::tf_feature::Feature;

/// A feature list: one entry per step, which is `None` if the step's feature has no kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FeatureList<'a> {
    steps: Vec<Option<Feature<'a>>>,
}

impl<'a> FeatureList<'a> {
    /// Number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// True if the list has no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Option<Feature<'a>>] {
        &self.steps
    }

    fn take(&mut self, message: &'a [u8]) -> Result<(), Problem> {
        let mut fields = Message::new(message);
        while let Some(field) = fields.next()? {
            if let (1, Value::Bytes(feature)) = field {
                self.steps.push(Feature::merge(None, feature)?);
            }
        }
        Ok(())
    }
}

fn not_a_sequence(place: &str, problem: Problem) -> Error {
    not_of_kind(place, "tf.SequenceExample", problem)
}

/// Calls `entry` with each entry of the map `SequenceExample.feature_lists.feature_list`, in order.
fn each_list<'a>(payload: &'a [u8], mut entry: impl FnMut(&'a [u8]) -> Result<(), Problem>) -> Result<(), Problem> {
    let mut sequence = Message::new(payload);
    while let Some(field) = sequence.next()? {
        let (2, Value::Bytes(lists)) = field else { continue };
        let mut lists = Message::new(lists);
        while let Some(field) = lists.next()? {
            if let (1, Value::Bytes(bytes)) = field {
                entry(bytes)?;
            }
        }
    }
    Ok(())
}

fn entry_list(entry: &[u8]) -> Result<FeatureList<'_>, Problem> {
    let (mut fields, mut list) = (Message::new(entry), FeatureList::default());
    while let Some(field) = fields.next()? {
        if let (2, Value::Bytes(message)) = field {
            list.take(message)?;
        }
    }
    Ok(list)
}

/// Names of a record's feature lists, without duplicates, in the order in which they first occur. To read the context,
/// parse the same payload with [`crate::tf_example::Example::parse`].
pub fn feature_list_names<'a>(payload: &'a [u8], place: &str) -> Result<Vec<&'a [u8]>> {
    let (mut names, mut known) = (Vec::new(), std::collections::HashSet::new());
    each_list(payload, |entry| {
        let name = entry_name(entry)?;
        if known.insert(name) {
            names.push(name);
        }
        Ok(())
    })
    .map_err(|problem| not_a_sequence(place, problem))?;
    Ok(names)
}

/// Finds the feature list `name` of a record; `None` if the list is missing. `place` names the record in messages.
pub fn find_feature_list<'a>(payload: &'a [u8], name: &str, place: &str) -> Result<Option<FeatureList<'a>>> {
    let mut last = None;
    each_list(payload, |entry| {
        if entry_name(entry)? == name.as_bytes() {
            last = Some(entry);
        }
        Ok(())
    })
    .and_then(|()| last.map(entry_list).transpose())
    .map_err(|problem| not_a_sequence(place, problem))
}
