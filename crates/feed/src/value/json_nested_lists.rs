// SPDX-License-Identifier: Apache-2.0
//! JSON arrays of arrays of any length. Such an array is parsed only for a field of lists of lists.

use penstock_types::DType;
use serde_json::Value as Json;

use super::put_text;

/// Bytes of all items, and the ends of the lists, in the form of `Lists`.
type Parsed = (Vec<u8>, Vec<Vec<usize>>);

/// Parses an array with `levels` levels of arrays; `levels` is at least 2. The items are numbers or booleans, which are
/// converted to `dtype`. If `dtype` is `None`, the items are strings. The error contains the first item that does not
/// fit.
pub(super) fn parse(text: &str, levels: usize, dtype: Option<DType>) -> Result<Parsed, String> {
    let document: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut walk = Walk { bytes: Vec::new(), ends: vec![Vec::new(); levels], strings: Vec::new(), dtype };
    walk.array(&document, 0)?;
    let Walk { bytes, mut ends, strings, .. } = walk;
    ends.remove(0); // the end of the outermost array
    if dtype.is_none() {
        ends.push(strings);
    }
    Ok((bytes, ends))
}

/// True if the text is an array that contains a null, directly or in an inner array.
pub(super) fn has_null(text: &str) -> bool {
    fn is_null_inside(value: &Json) -> bool {
        value.as_array().is_some_and(|items| items.iter().any(|item| item.is_null() || is_null_inside(item)))
    }
    text.starts_with('[') && serde_json::from_str(text).is_ok_and(|value| is_null_inside(&value))
}

struct Walk {
    bytes: Vec<u8>,
    /// For each level, the end of each array: an index into the next level or, at the last level, into the items.
    ends: Vec<Vec<usize>>,
    /// End of each string in `bytes`.
    strings: Vec<usize>,
    dtype: Option<DType>,
}

impl Walk {
    fn array(&mut self, value: &Json, level: usize) -> Result<(), String> {
        let Json::Array(items) = value else { return Err(format!("{} is not a list", shown(value))) };
        let is_last = level + 1 == self.ends.len();
        for item in items {
            if is_last { self.item(item) } else { self.array(item, level + 1) }?;
        }
        let end = match (self.ends.get(level + 1), self.dtype) {
            (Some(next), _) => next.len(),
            (None, Some(dtype)) => self.bytes.len() / dtype.size(),
            (None, None) => self.strings.len(),
        };
        self.ends[level].push(end);
        Ok(())
    }

    fn item(&mut self, item: &Json) -> Result<(), String> {
        let Some(dtype) = self.dtype else {
            let Json::String(text) = item else { return Err(format!("{} is not a string", shown(item))) };
            self.bytes.extend_from_slice(text.as_bytes());
            self.strings.push(self.bytes.len());
            return Ok(());
        };
        let number = match item {
            Json::Number(number) => number.to_string(),
            Json::Bool(value) => u8::from(*value).to_string(),
            _ => return Err(format!("{} is not a number", shown(item))),
        };
        let from = self.bytes.len();
        self.bytes.resize(from + dtype.size(), 0);
        if put_text(dtype, &number, &mut self.bytes[from..]) {
            Ok(())
        } else {
            Err(format!("{number} is not a valid {dtype}"))
        }
    }
}

/// First characters of a value, for an error message.
fn shown(value: &Json) -> String {
    value.to_string().chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_any_lengths_have_ends_by_level() {
        let numbers = |text, levels| parse(text, levels, Some(DType::U8));
        assert_eq!(numbers("[[1,2],[],[3]]", 2), Ok((vec![1, 2, 3], vec![vec![2, 2, 3]])));
        assert_eq!(numbers("[[[1],[true]],[]]", 3), Ok((vec![1, 1], vec![vec![2, 2], vec![1, 2]])));
        assert_eq!(numbers("[]", 2), Ok((vec![], vec![vec![]])));
        let strings = parse(r#"[["a","\u00e9"],[""]]"#, 2, None);
        assert_eq!(strings, Ok(("aé".into(), vec![vec![2, 3], vec![1, 3, 3]])));
        for (text, problem) in [
            ("[[1],2]", "2 is not a list"),
            ("{\"a\":1}", "{\"a\":1} is not a list"),
            ("[[[1]]]", "[1] is not a number"),
            ("[[null]]", "null is not a number"),
            ("[[1],[256]]", "256 is not a valid uint8"),
            ("[[1.5]]", "1.5 is not a valid uint8"),
        ] {
            assert_eq!(numbers(text, 2).unwrap_err(), problem);
        }
        assert_eq!(parse("[[1]]", 2, None).unwrap_err(), "1 is not a string");
        assert!(has_null("[1, null]") && has_null("[[null]]"));
        assert!(!has_null(r#"["null", {"a": null}]"#) && !has_null(r#"{"a": [null]}"#) && !has_null("[1"));
    }
}
