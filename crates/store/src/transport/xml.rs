// SPDX-License-Identifier: Apache-2.0
//! Parser for the subset of XML in S3 responses: elements and text. It does not support attributes or a DTD. The only
//! entities are the five predefined ones and character references.

use penstock_types::{Error, Result};
use quick_xml::Reader;
use quick_xml::events::Event;

/// Maximum nesting depth of elements. S3 responses have a depth of up to five.
const DEPTH: usize = 16;

/// At the end of each element, calls `found` with the path and the text of the element. The text of an element with
/// child elements is empty.
pub(crate) fn elements(body: &[u8], mut found: impl FnMut(&[&str], String)) -> Result<()> {
    let bad = |problem: &str| Error::corrupt("the store's response", format!("is not valid XML: {problem}"));
    let text = std::str::from_utf8(body).map_err(|_| bad("not UTF-8"))?;
    let mut reader = Reader::from_str(text);
    let mut path: Vec<String> = Vec::new();
    let mut content = String::new();
    let mut has_child = false;
    loop {
        match reader.read_event().map_err(|error| bad(&error.to_string()))? {
            Event::Start(start) => {
                if path.len() == DEPTH {
                    return Err(bad("too many levels of elements"));
                }
                path.push(start.local_name().into_inner().to_owned());
                content.clear();
                has_child = false;
            }
            Event::End(_) => {
                let names: Vec<&str> = path.iter().map(String::as_str).collect();
                let text = if has_child { String::new() } else { std::mem::take(&mut content) };
                found(&names, text);
                path.pop();
                has_child = true;
            }
            Event::Empty(start) => {
                let name = start.local_name().into_inner().to_owned();
                let names: Vec<&str> = path.iter().map(String::as_str).chain([name.as_str()]).collect();
                found(&names, String::new());
                has_child = true;
            }
            Event::Text(text) => content.push_str(&text),
            Event::CData(text) => content.push_str(&text),
            Event::GeneralRef(entity) => {
                let known = match &*entity {
                    "lt" => Some('<'),
                    "gt" => Some('>'),
                    "amp" => Some('&'),
                    "quot" => Some('"'),
                    "apos" => Some('\''),
                    _ => entity.resolve_char_ref().map_err(|error| bad(&error.to_string()))?,
                };
                content.push(known.ok_or_else(|| bad("unknown entity"))?);
            }
            Event::DocType(_) => return Err(bad("a DOCTYPE is not allowed")),
            Event::Eof if path.is_empty() => return Ok(()),
            Event::Eof => return Err(bad("unexpected end")),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
}

/// Escapes text for XML. Returns `None` for text that XML cannot express (control characters).
pub(crate) fn escaped(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(body: &str) -> Vec<(String, String)> {
        let mut seen = Vec::new();
        elements(body.as_bytes(), |path, text| seen.push((path.join("/"), text))).unwrap();
        seen
    }

    #[test]
    fn test_elements_come_with_path_and_unescaped_text() {
        let seen = all("<a xmlns='x'><b>1 &lt;&#x41;&amp;</b><c/><d><b><![CDATA[<]]></b></d> </a>");
        let want = [("a/b", "1 <A&"), ("a/c", ""), ("a/d/b", "<"), ("a/d", ""), ("a", "")];
        assert_eq!(seen, want.map(|(path, text)| (path.to_owned(), text.to_owned())));
    }

    #[test]
    fn test_elements_of_hostile_documents_err() {
        let deep = "<a>".repeat(1000);
        for body in ["<a>", "<a></b>", "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>", "<a>&x;</a>", "<a>&#0;</a>", &deep] {
            assert!(elements(body.as_bytes(), |_, _| {}).is_err(), "{body:.40}");
        }
    }

    proptest! {
        #[test]
        fn prop_escaped_text_comes_back(text in "\\PC{0,40}") {
            if let Some(escaped) = escaped(&text) {
                prop_assert_eq!(all(&format!("<a>{escaped}</a>")), vec![("a".to_owned(), text)]);
            }
        }

        #[test]
        fn prop_elements_of_any_bytes_do_not_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = elements(&body, |_, _| {});
        }

        #[test]
        fn prop_elements_of_anything_like_xml_do_not_panic(body in "[<>/a&;#!\\[\\]\"' -?x0-9]{0,80}") {
            let _ = elements(body.as_bytes(), |_, _| {});
        }
    }
}
