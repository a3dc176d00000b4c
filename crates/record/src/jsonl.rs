// SPDX-License-Identifier: Apache-2.0
//! JSON lines: one JSON object per line. Blank lines are not records.
//!
//! Reading a line checks the syntax of the whole line, but only locates the values. A value is parsed when it is used.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;

use penstock_types::{Error, Result, with_separators};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Byte-order mark, which some editors write at the start of a file.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Maximum nesting depth of the objects through which a dotted name leads.
const MAX_DEPTH: usize = 32;

/// Checks the start of a file, and returns the length of its byte-order mark.
///
/// # Errors
/// [`Error::Unsupported`] if the file is a JSON array, because an array is not divided into lines.
pub fn check_start(content: &[u8], place: &str) -> Result<usize> {
    let start = if content.starts_with(BOM) { BOM.len() } else { 0 };
    let first = content[start..].iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        let what = format!("a JSON array instead of JSON lines ({place})");
        return Err(Error::Unsupported { what, by: "the JSON lines reader".to_owned() });
    }
    Ok(start)
}

/// Returns the byte range of each record. `start` is the offset of the first line. The last line may lack a line end.
pub fn lines(content: &[u8], start: usize) -> impl Iterator<Item = Range<usize>> {
    let ends = memchr::memchr_iter(b'\n', content).chain(std::iter::once(content.len()));
    let mut from = start;
    ends.filter_map(move |end| {
        let line = content.get(from..end).unwrap_or_default().trim_ascii();
        let at = from;
        from = end + 1;
        if line.is_empty() {
            return None;
        }
        let lead = content[at..end].len() - content[at..end].trim_ascii_start().len();
        Some(at + lead..at + lead + line.len())
    })
}

/// Text of a JSON string.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Entries of a JSON object, in stored order.
#[derive(Debug)]
struct Entries<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(name), value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    entries.push((name, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// Owns the decoded strings of [`Json::Texts`]. A string that is stored with escapes cannot be borrowed from the line.
#[derive(Debug, Default)]
struct Kept<'a>(OnceCell<(Vec<Text<'a>>, Box<Self>)>);

impl<'a> Kept<'a> {
    /// Stores `texts` for the lifetime of `self`.
    fn keep(&self, texts: Vec<Text<'a>>) -> &[Text<'a>] {
        let (mut at, mut texts) = (self, Some(texts));
        loop {
            let (kept, next) = at.0.get_or_init(|| (texts.take().unwrap_or_default(), Box::default()));
            if texts.is_none() {
                return kept;
            }
            at = next;
        }
    }
}

/// A record: the object of one line.
#[derive(Debug)]
pub struct Line<'a> {
    entries: Entries<'a>,
    kept: Kept<'a>,
}

/// A value of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Json<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as stored.
    Number(&'a str),
    /// A string.
    Text(Cow<'a, str>),
    /// A non-empty list of strings.
    Texts(Vec<&'a str>),
    /// Any other list, or an object, as stored.
    Raw(&'a str),
}

impl<'a> Line<'a> {
    /// Parses a line. `place` names the record in error messages.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the line is not a JSON object in UTF-8.
    pub fn parse(line: &'a [u8], place: &str) -> Result<Self> {
        let text = std::str::from_utf8(line).map_err(|error| {
            let (at, all) = (with_separators(error.valid_up_to() as u64), with_separators(line.len() as u64));
            Error::corrupt(place, format!("is not UTF-8 (byte {at} of {all})"))
        })?;
        let entries = serde_json::from_str(text).map_err(|error| {
            let rest = text.get(error.column().saturating_sub(1)..).unwrap_or_default();
            let advice = match error.is_eof() {
                true => " (if the object continues on the next line, join its lines: jq -c . OLD.json > NEW.jsonl)",
                // Python's json.dumps writes these words, although JSON does not allow them.
                false if ["NaN", "Infinity"].iter().any(|word| rest.starts_with(word)) => {
                    " (NaN and Infinity are not valid JSON: write null, or read the line with raw(record=True) and decode it)"
                }
                false => "",
            };
            Error::corrupt(place, format!("is not a JSON object on one line: {}{advice}", of_line(&error)))
        })?;
        Ok(Self { entries, kept: Kept::default() })
    }

    /// Names of the entries, without the entries of nested objects.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(self.entries.0.len());
        for (name, _) in &self.entries.0 {
            if !names.iter().any(|known| known == name) {
                names.push(name.clone().into_owned());
            }
        }
        names
    }

    /// Returns the value with this name. If the record has no such entry, a name with dots finds an entry of a nested
    /// object (`meta.url`). If a name occurs twice, the last value counts, as in Python.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a string has an escape that is not a character.
    pub fn value(&self, name: &str, place: &str) -> Result<Option<Json<'_>>> {
        let Some(raw) = find(&self.entries, name, MAX_DEPTH) else { return Ok(None) };
        let text = raw.get();
        let damaged = |error: serde_json::Error| {
            Error::corrupt(place, format!("`{name}` has an invalid string: {}", of_line(&error)))
        };
        Ok(Some(match text.as_bytes().first() {
            Some(b'"') => {
                let Text(text) = serde_json::from_str(text).map_err(damaged)?;
                Json::Text(text)
            }
            Some(b'n') => Json::Null,
            Some(b't') => Json::Bool(true),
            Some(b'f') => Json::Bool(false),
            Some(b'[') if text[1..].trim_ascii_start().starts_with('"') => {
                match serde_json::from_str::<Vec<Text<'a>>>(text) {
                    Ok(texts) => Json::Texts(self.kept.keep(texts).iter().map(|text| &*text.0).collect()),
                    // The list contains strings and other values.
                    Err(error) if error.is_data() => Json::Raw(text),
                    Err(error) => return Err(damaged(error)),
                }
            }
            Some(b'[' | b'{') => Json::Raw(text),
            _ => Json::Number(text),
        }))
    }
}

fn find<'a>(entries: &Entries<'a>, name: &str, depth: usize) -> Option<&'a RawValue> {
    let entry = |name: &str| entries.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| *value);
    if let Some(value) = entry(name) {
        return Some(value);
    }
    if depth == 0 {
        return None;
    }
    name.match_indices('.').find_map(|(dot, _)| {
        let inside = entry(&name[..dot]).filter(|value| value.get().starts_with('{'))?;
        find(&serde_json::from_str(inside.get()).ok()?, &name[dot + 1..], depth - 1)
    })
}

/// Text of an error. The line number is left out, because it is always 1.
fn of_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at byte ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(content: &[u8]) -> Vec<&[u8]> {
        lines(content, check_start(content, "p").unwrap()).map(|range| &content[range]).collect()
    }

    #[test]
    fn blank_lines_and_a_byte_order_mark_are_not_records() {
        assert_eq!(found(b"\xef\xbb\xbf{\"a\":1}\r\n\r\n \t\n{}\n"), [&b"{\"a\":1}"[..], b"{}"]);
        assert_eq!(found(b"{}"), [b"{}"]);
        assert_eq!(found(b""), [b""; 0]);
        let error = check_start(b" \n[1,", "p").unwrap_err().to_string();
        assert!(error.starts_with("a JSON array instead of JSON lines (p) is not supported"), "{error}");
    }

    #[test]
    fn values_are_found_by_dotted_names() {
        let text = r#"{"a":{"b.c":{"d":1},"b":null},"a.e":true,"s":"x\n\ud83d\ude00","l":["p","q\t"],"m":["p",1],"n":-2.5e3,
            "o":{},"s2":"é","a":{"b.c":{"d":[]}}}"#;
        let line = Line::parse(text.as_bytes(), "p").unwrap();
        let value = |name: &str| line.value(name, "p").unwrap();
        assert_eq!(line.names(), ["a", "a.e", "s", "l", "m", "n", "o", "s2"]);
        assert_eq!(value("a.b.c.d"), Some(Json::Raw("[]")));
        assert_eq!(value("a.b"), None, "the last `a` counts");
        assert_eq!(value("a.e"), Some(Json::Bool(true)));
        assert_eq!(value("s"), Some(Json::Text("x\n😀".into())));
        assert_eq!(value("l"), Some(Json::Texts(vec!["p", "q\t"])));
        assert_eq!(value("l"), Some(Json::Texts(vec!["p", "q\t"])));
        assert_eq!(value("m"), Some(Json::Raw(r#"["p",1]"#)));
        assert_eq!(value("n"), Some(Json::Number("-2.5e3")));
        assert!(matches!(value("s2"), Some(Json::Text(Cow::Borrowed("é")))));
        assert_eq!(value("n.x"), None);
    }

    #[test]
    fn damaged_lines_are_corrupt() {
        let problem = |line: &[u8]| Line::parse(line, "p").map(|_| ()).unwrap_err().to_string();
        assert_eq!(problem(b"{\"a\":\"\xff\"}"), "p is not UTF-8 (byte 6 of 9)");
        assert!(
            problem(b"{\"a\":1").starts_with("p is not a JSON object on one line: EOF while"),
            "{}",
            problem(b"{\"a\":1")
        );
        for line in [&b"[1]"[..], b"1", b"{} {}", b"{\"a\":NaN}", b"{'a':1}"] {
            assert!(problem(line).starts_with("p is not a JSON object on one line: "), "{}", problem(line));
        }
        let line = Line::parse(br#"{"a":"\ud800"}"#, "p").unwrap();
        assert!(line.value("a", "p").unwrap_err().to_string().starts_with("p `a` has an invalid string: "));
    }

    proptest! {
        #[test]
        fn prop_values_are_those_of_serde_json(
            texts in prop::collection::vec(".{0,8}", 0..4), number: f64, blank in "[ \r]{0,2}",
        ) {
            prop_assume!(number.is_finite());
            let want = serde_json::json!({ "n": number, "l": texts, "o": { "i": texts.len() } });
            let content = format!("{blank}\n{want}{blank}\n{blank}");
            let range = lines(content.as_bytes(), 0).collect::<Vec<_>>();
            prop_assert_eq!(range.len(), 1);
            let line = Line::parse(&content.as_bytes()[range[0].clone()], "p").unwrap();
            let Some(Json::Number(n)) = line.value("n", "p").unwrap() else { panic!("no number") };
            prop_assert_eq!(n.parse::<f64>().unwrap(), number);
            match line.value("l", "p").unwrap() {
                Some(Json::Texts(found)) => prop_assert_eq!(found, texts),
                other => prop_assert_eq!(other, Some(Json::Raw("[]"))),
            }
            prop_assert!(line.value("o.i", "p").unwrap().is_some());
        }

        #[test]
        fn prop_any_bytes_are_lines_or_an_error(content: Vec<u8>) {
            let Ok(start) = check_start(&content, "p") else { return Ok(()) };
            for range in lines(&content, start) {
                prop_assert!(!content[range.clone()].contains(&b'\n'));
                if let Ok(line) = Line::parse(&content[range], "p") {
                    for name in line.names() {
                        let _ = line.value(&name, "p");
                    }
                }
            }
        }
    }
}
