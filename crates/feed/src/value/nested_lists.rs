// SPDX-License-Identifier: Apache-2.0
//! Lists of lists: as the value of a record, and as the rows that a batch collects.

use std::borrow::Cow;

use penstock_record::tf_example::Feature;
use penstock_types::{TensorSpec, with_separators};

use crate::value::{Value, json_nested_lists};

/// A list of lists. Its depth is `ends.len() + 1`.
#[derive(Debug, Clone, PartialEq)]
pub struct Nested<'a> {
    /// For each level of inner lists, with the outermost level first: the end of each list. An end is an index into the
    /// next level or, at the last level, into the items.
    pub ends: Vec<Vec<usize>>,
    /// Items of the innermost lists, concatenated: `Value::List` or `Value::Strings`.
    pub items: Box<Value<'a>>,
}

/// Variable-length value of one row of a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lists {
    /// Bytes of all items, concatenated.
    pub bytes: Vec<u8>,
    /// Ends of the lists, as in [`Nested::ends`]. For byte strings, one more level follows: the end of each string in
    /// `bytes`.
    pub ends: Vec<Vec<usize>>,
}

impl Lists {
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len() + size_of::<usize>() * self.ends.iter().map(Vec::len).sum::<usize>()
    }
}

impl Nested<'_> {
    fn depth(&self) -> usize {
        self.ends.len() + 1
    }

    pub(crate) fn describe(&self) -> String {
        let count = with_separators(self.ends.first().map_or(0, Vec::len) as u64);
        let levels = if self.ends.len() > 1 { format!(" in {} levels", self.depth()) } else { String::new() };
        let items = self.items.describe();
        format!("a list of {count} lists{levels} ({} in all)", items.trim_start_matches("a list of "))
    }

    /// Checks that every list at the last levels has the length that `shape` states for its level.
    pub(crate) fn check_shape(&self, shape: &[usize]) -> Result<(), String> {
        let first = self.ends.len().checked_sub(shape.len()).ok_or_else(|| self.wrong_depth(shape))?;
        for (ends, &side) in self.ends[first..].iter().zip(shape) {
            if let Some(at) = (0..ends.len()).find(|&at| ends[at] != side.saturating_mul(at + 1)) {
                let len = ends[at] - at.checked_sub(1).map_or(0, |before| ends[before]);
                return Err(format!("inner list {at} has {} items instead of {side}", with_separators(len as u64)));
            }
        }
        Ok(())
    }

    /// Checks that the lists of all levels form an array of this shape.
    pub(crate) fn check_array(&self, shape: &[usize]) -> Result<(), String> {
        let Some((&rows, inner)) = shape.split_first().filter(|_| shape.len() == self.depth()) else {
            return Err(self.wrong_depth(shape));
        };
        match self.ends[0].len() {
            have if have == rows => self.check_shape(inner),
            have => Err(format!("the value has {} lists instead of {rows}", with_separators(have as u64))),
        }
    }

    fn wrong_depth(&self, shape: &[usize]) -> String {
        format!("the value has {} levels of lists, but the shape has {} dimensions", self.depth(), shape.len())
    }
}

/// Returns the end of each part in the concatenation of parts with the lengths `lens`.
fn ends(lens: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut end = 0;
    lens.map(|len| {
        end += len;
        end
    })
    .collect()
}

fn of_strings(mut outer: Vec<Vec<usize>>, strings: &[&[u8]]) -> Lists {
    outer.push(ends(strings.iter().map(|string| string.len())));
    Lists { bytes: strings.concat(), ends: outer }
}

impl<'a> Value<'a> {
    /// Size in bytes of the result of [`Value::lists`], computed without creating the result. For JSON, an upper bound.
    pub(crate) fn lists_size(&self, item: Option<&TensorSpec>, depth: usize) -> usize {
        let index = size_of::<usize>();
        let strings = |strings: &[&[u8]]| strings.iter().map(|string| string.len() + index).sum::<usize>();
        match (self, item) {
            (Self::Nested(nested), _) => {
                index * nested.ends.iter().map(Vec::len).sum::<usize>() + nested.items.lists_size(item, 1)
            }
            (Self::NullAs(_) | Self::Null | Self::Empty(_), _) => 0,
            (Self::Strings(values) | Self::Feature(Feature::Bytes(values)), _) => strings(values),
            // In JSON, a list or an item takes at least two characters.
            (Self::Json(text), _) => text.len().saturating_mul(index),
            (Self::Numbers(numbers), _) if depth > 1 => numbers.text().len().saturating_mul(index),
            (Self::Steps(steps), None) => {
                let step = |step: &Feature<'_>| match step {
                    Feature::Bytes(values) => strings(values),
                    _ => 0,
                };
                steps.steps().iter().flatten().map(step).sum::<usize>() + index * steps.len()
            }
            (Self::Steps(steps), Some(item)) => self.gathered_len(item) + index * steps.len(),
            (_, Some(item)) => self.gathered_len(item),
            (_, None) => 0,
        }
    }

    /// Returns lists of `depth` levels. The items have the type `item`. If `item` is `None`, they are byte strings.
    pub(crate) fn lists(&self, item: Option<&TensorSpec>, depth: usize) -> Result<Lists, String> {
        let want = || match (item, depth) {
            (Some(item), 1) => format!("any number of {} {:?}", item.dtype, item.shape),
            (Some(item), _) => format!("lists in {depth} levels of {} {:?}", item.dtype, item.shape),
            (None, 1) => "a list of byte strings".to_owned(),
            (None, _) => format!("lists in {depth} levels of byte strings"),
        };
        match (self, item) {
            (Self::Null | Self::NullAs(_) | Self::Empty(_), _) => Ok(Lists::default()),
            (Self::Nested(nested), Some(item)) if nested.depth() == depth + item.shape.len() => {
                nested.check_shape(&item.shape).map_err(|why| self.unlike_why(&want(), &why))?;
                let scalar = TensorSpec { dtype: item.dtype, shape: Vec::new() };
                let bytes = nested.items.gather(&scalar)?;
                Ok(Lists { bytes, ends: nested.ends[..depth - 1].to_vec() })
            }
            (Self::Nested(nested), None) if nested.depth() == depth => match nested.items.as_ref() {
                Self::Strings(strings) => Ok(of_strings(nested.ends.clone(), strings)),
                _ => Err(self.unlike(&want())),
            },
            (Self::Json(_) | Self::Numbers(_), _) if depth > 1 => {
                let shape = item.map_or(&[][..], |item| &item.shape);
                let text = self.text()?;
                let text = std::str::from_utf8(&text).map_err(|error| error.to_string())?;
                let lists = json_nested_lists::parse(text, depth + shape.len(), item.map(|item| item.dtype));
                let (bytes, ends) = lists.map_err(|why| self.unlike_why(&want(), &why))?;
                let mut nested = Nested { ends, items: Box::new(Value::Null) };
                nested.check_shape(shape).map_err(|why| self.unlike_why(&want(), &why))?;
                nested.ends.truncate(depth - usize::from(item.is_some()));
                Ok(Lists { bytes, ends: nested.ends })
            }
            (Self::Steps(steps), Some(item)) if depth == 2 => {
                let mut lists = Lists { bytes: Vec::new(), ends: vec![Vec::new()] };
                let size = item.shape.iter().product::<usize>() * item.dtype.size();
                for step in steps.steps() {
                    if let Some(step) = step {
                        lists.bytes.extend(Value::Feature(step.clone()).gather(item)?);
                    }
                    lists.ends[0].push(lists.bytes.len().checked_div(size).unwrap_or(0));
                }
                Ok(lists)
            }
            (Self::Steps(steps), None) if depth == 2 => {
                let mut strings: Vec<&[u8]> = Vec::new();
                let mut outer = Vec::new();
                for step in steps.steps() {
                    match step {
                        Some(Feature::Bytes(values)) => strings.extend(values),
                        None => {}
                        Some(_) => return Err(self.unlike(&want())),
                    }
                    outer.push(strings.len());
                }
                Ok(of_strings(vec![outer], &strings))
            }
            (_, Some(item)) if depth == 1 => Ok(Lists { bytes: self.gather(item)?, ends: Vec::new() }),
            (_, None) if depth == 1 => Ok(of_strings(Vec::new(), &self.strings()?)),
            _ => Err(self.unlike(&want())),
        }
    }

    /// Returns the value's byte strings. For a feature list, each step must be one byte string.
    fn strings(&self) -> Result<Cow<'_, [&[u8]]>, String> {
        match self {
            Self::Strings(strings) | Self::Feature(Feature::Bytes(strings)) => Ok(Cow::Borrowed(strings)),
            Self::Steps(steps) => {
                let string = |(at, step): (usize, &Option<Feature<'a>>)| match step {
                    Some(Feature::Bytes(values)) if values.len() == 1 => Ok(values[0]),
                    _ => Err(self.unlike_why(
                        "byte strings",
                        &format!(
                            "step {at} is not exactly one byte string; for any number of byte strings per step, use \
                             list(raw_list())"
                        ),
                    )),
                };
                steps.steps().iter().enumerate().map(string).collect::<Result<_, _>>().map(Cow::Owned)
            }
            _ => Err(self.unlike("a list of byte strings")),
        }
    }
}
