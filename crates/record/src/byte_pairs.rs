// SPDX-License-Identifier: Apache-2.0
//! Byte-level byte-pair encoding (BPE): converts texts to the token ids that Hugging Face's `tokenizers` returns.
//!
//! Supports the tokenizers of GPT-2, Llama 3 and Qwen, and others with the same steps. The caller uses `tokenizers`
//! instead for a tokenizer with other steps, and for a text with a character whose class depends on the Unicode
//! version.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use memchr::memmem::Finder;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

/// Rule that splits a text into words. Each word is encoded separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
    Gpt2,
    /// The pattern [`LLAMA3`] or [`QWEN`]; `digits` is the maximum number of digits in a word.
    Llama3 { digits: usize },
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A byte-level BPE tokenizer. Threads share the tokenizer; each thread has its own [`WordCache`].
#[derive(Debug)]
pub struct BytePairs {
    split: Split,
    prefix_space: bool,
    is_nfc: bool,
    /// First bytes of each added token. Only `tokenizers` can encode a text that contains one of these byte strings.
    added: Vec<Finder<'static>>,
    bytes: [u32; 256],
    /// For each pair of tokens: rank of the merge, and the merged token.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Token of each byte string, if the tokenizer encodes a word of its vocabulary as one token (`ignore_merges`).
    words: Option<HashMap<Box<[u8]>, u32>>,
}

/// Tokens of recently encoded words. A new word replaces the word that was in the same slot.
#[derive(Debug, Default)]
pub struct WordCache(Vec<Option<CachedWord>>);

#[derive(Debug)]
struct CachedWord {
    word: Box<[u8]>,
    tokens: Box<[u32]>,
}

/// Number of slots in a [`WordCache`]. A full cache takes about 10 MB.
const SLOTS: usize = 1 << 16;

/// Maximum length of a cached word, in bytes.
const MAX_CACHED: usize = 48;

/// Number of bytes at the start of an added token that are searched for in a text.
const ADDED_PREFIX: usize = 4;

impl BytePairs {
    /// Reads a tokenizer from its JSON. Returns `None` if the tokenizer has an unsupported setting.
    pub fn of_json(json: &str) -> Option<Self> {
        let root: Value = serde_json::from_str(json).ok()?;
        let model = &root["model"];
        let is_plain = ["truncation", "padding"].iter().all(|key| root[key].is_null())
            && model["type"] == "BPE"
            && (model["dropout"].is_null() || model["dropout"].as_f64() == Some(0.0))
            && ["continuing_subword_prefix", "end_of_word_suffix"]
                .iter()
                .all(|key| model[key].as_str().unwrap_or_default().is_empty())
            && !model["byte_fallback"].as_bool().unwrap_or_default();
        let is_nfc = root["normalizer"]["type"] == "NFC";
        if !is_plain || !(is_nfc || root["normalizer"].is_null()) {
            return None;
        }
        let (split, prefix_space) = split_of(&root["pre_tokenizer"])?;
        let known: Vec<Option<u8>> = byte_letters();
        let as_bytes = |token: &str| -> Option<Box<[u8]>> {
            token.chars().map(|letter| known.get(letter as usize).copied().flatten()).collect()
        };
        let vocabulary = model["vocab"].as_object()?;
        let id_of = |token: &str| vocabulary.get(token)?.as_u64().and_then(|id| u32::try_from(id).ok());
        let mut bytes = [u32::MAX; 256];
        for (letter, byte) in known.iter().enumerate() {
            if let (Some(byte), Some(letter)) = (byte, char::from_u32(letter as u32)) {
                bytes[usize::from(*byte)] = id_of(letter.encode_utf8(&mut [0; 4]))?;
            }
        }
        let mut merges = HashMap::new();
        for (rank, merge) in model["merges"].as_array()?.iter().enumerate() {
            let (left, right) = match merge {
                Value::String(pair) => pair.split_once(' ')?,
                pair => (pair[0].as_str()?, pair[1].as_str()?),
            };
            let merged = id_of(&[left, right].concat())?;
            // If a pair is listed twice, its last rank counts, as in `tokenizers`.
            merges.insert((id_of(left)?, id_of(right)?), (u32::try_from(rank).ok()?, merged));
        }
        let ignores_merges = model["ignore_merges"].as_bool().unwrap_or_default();
        let words = ignores_merges
            .then(|| vocabulary.keys().filter_map(|token| Some((as_bytes(token)?, id_of(token)?))).collect());
        let mut added: Vec<&[u8]> = Vec::new();
        for token in root["added_tokens"].as_array().into_iter().flatten() {
            let content = token["content"].as_str()?.as_bytes();
            added.push(&content[..content.len().min(ADDED_PREFIX)]);
        }
        added.sort_unstable();
        added.dedup();
        let added = added.into_iter().filter(|start| !start.is_empty()).map(|start| Finder::new(start).into_owned());
        Some(Self { split, prefix_space, is_nfc, added: added.collect(), bytes, merges, words })
    }

    /// Appends the tokens of a text to `out`. Returns false and appends nothing if only `tokenizers` can encode the
    /// text.
    pub fn encode(&self, text: &[u8], cache: &mut WordCache, out: &mut Vec<u32>) -> bool {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        let is_known = text.is_ascii() || text.chars().all(|c| class(c).is_some() && !(self.is_nfc && may_change(c)));
        if text.is_empty() || !is_known || self.added.iter().any(|start| start.find(text.as_bytes()).is_some()) {
            return false;
        }
        let text: Cow<'_, str> =
            if self.prefix_space && !text.starts_with(' ') { format!(" {text}").into() } else { text.into() };
        let mut at = 0;
        while at < text.len() {
            let end = match self.split {
                Split::Gpt2 => gpt2_word(&text, at),
                Split::Llama3 { digits } => llama3_word(&text, at, digits),
            };
            self.encode_word(&text.as_bytes()[at..end], cache, out);
            at = end;
        }
        true
    }

    fn encode_word(&self, word: &[u8], cache: &mut WordCache, out: &mut Vec<u32>) {
        if word.len() > MAX_CACHED {
            return self.merge(word, out);
        }
        if cache.0.is_empty() {
            cache.0.resize_with(SLOTS, || None);
        }
        let slot = &mut cache.0[xxh3_64(word) as usize % SLOTS];
        if let Some(known) = slot.as_ref().filter(|known| *known.word == *word) {
            return out.extend_from_slice(&known.tokens);
        }
        let start = out.len();
        self.merge(word, out);
        *slot = Some(CachedWord { word: word.into(), tokens: out[start..].into() });
    }

    /// Merges pairs of tokens in ascending order of rank; of pairs with equal ranks, the leftmost one first.
    fn merge(&self, word: &[u8], out: &mut Vec<u32>) {
        if let Some(&token) = self.words.as_ref().and_then(|words| words.get(word)) {
            return out.push(token);
        }
        // A linked list of (token, previous, next). A part that was merged into the part before it has no token.
        const NONE: u32 = u32::MAX;
        let mut parts: Vec<(Option<u32>, u32, u32)> = (0..word.len() as u32)
            .map(|at| (Some(self.bytes[usize::from(word[at as usize])]), at.wrapping_sub(1), at + 1))
            .collect();
        if let Some(last) = parts.last_mut() {
            last.2 = NONE;
        }
        let pair = |parts: &[(Option<u32>, u32, u32)], at: u32| -> Option<(u32, u32)> {
            let (left, _, next) = *parts.get(at as usize)?;
            self.merges.get(&(left?, parts.get(next as usize)?.0?)).copied()
        };
        let mut queue: BinaryHeap<Reverse<(u32, u32, u32)>> = (0..word.len() as u32)
            .filter_map(|at| pair(&parts, at).map(|(rank, merged)| Reverse((rank, at, merged))))
            .collect();
        while let Some(Reverse((_, at, merged))) = queue.pop() {
            // Earlier merges may have changed the pair. As in `tokenizers`, a changed pair is skipped only if its
            // merged token is different too.
            if pair(&parts, at).is_none_or(|(_, now)| now != merged) {
                continue;
            }
            let next = parts[at as usize].2;
            let behind = parts[next as usize].2;
            parts[next as usize].0 = None;
            (parts[at as usize].0, parts[at as usize].2) = (Some(merged), behind);
            if let Some(part) = parts.get_mut(behind as usize) {
                part.1 = at;
            }
            for start in [parts[at as usize].1, at] {
                queue.extend(pair(&parts, start).map(|(rank, merged)| Reverse((rank, start, merged))));
            }
        }
        out.extend(parts.iter().filter_map(|part| part.0));
    }
}

/// Reads a pre-tokenizer. Also returns whether the pre-tokenizer adds a space before the text.
fn split_of(given: &Value) -> Option<(Split, bool)> {
    if given["type"] == "ByteLevel" {
        let splits = given["use_regex"].as_bool().unwrap_or(true);
        return splits.then_some((Split::Gpt2, given["add_prefix_space"].as_bool()?));
    }
    let [split, bytes] = given["pretokenizers"].as_array()?.as_slice() else { return None };
    let is_known = given["type"] == "Sequence"
        && split["type"] == "Split"
        && split["behavior"] == "Isolated"
        && split["invert"] == false
        && bytes["type"] == "ByteLevel"
        && bytes["use_regex"] == false
        && bytes["add_prefix_space"] == false;
    let digits = match split["pattern"]["Regex"].as_str()? {
        LLAMA3 => 3,
        QWEN => 1,
        _ => return None,
    };
    is_known.then_some((Split::Llama3 { digits }, false))
}

/// Maps each letter of a byte-level vocabulary to its byte. A printable byte is its own letter; the other bytes have
/// the letters from U+0100 on, in ascending order.
fn byte_letters() -> Vec<Option<u8>> {
    let mut letters = vec![None; 0x180];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let letter = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => usize::from(byte),
            _ => {
                next += 1;
                next - 1
            }
        };
        letters[letter] = Some(byte);
    }
    letters
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// Class of a character: `\p{L}`, `\p{N}`, `\s` or none of these. `None` if the class may depend on the Unicode
/// version.
fn class(c: char) -> Option<Class> {
    match c {
        'a'..='z' | 'A'..='Z' => Some(Class::Letter),
        '0'..='9' => Some(Class::Number),
        '\t'..='\r' | ' ' => Some(Class::Space),
        '\0'..='\x7f' => Some(Class::Other),
        // U+017F equals `s` if case is ignored.
        '\u{17f}' => None,
        // Blocks to which Unicode adds no characters, and in which all alphabetic characters are in \p{L}. In other
        // blocks, some alphabetic characters, such as combining marks, are not in \p{L}.
        '\u{80}'..='\u{2ff}'
        | '\u{370}'..='\u{482}'
        | '\u{48a}'..='\u{52f}'
        | '\u{2000}'..='\u{2064}'
        | '\u{20a0}'..='\u{20b9}'
        | '\u{2190}'..='\u{23ff}'
        | '\u{2500}'..='\u{26ff}'
        | '\u{3000}'..='\u{3003}'
        | '\u{3008}'..='\u{3020}'
        | '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fe}'
        | '\u{4e00}'..='\u{9fa5}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{ff01}'..='\u{ff20}'
        | '\u{fffd}'
        | '\u{1f300}'..='\u{1f64f}' => Some(match c {
            c if c.is_whitespace() => Class::Space,
            c if c.is_numeric() => Class::Number,
            c if c.is_alphabetic() => Class::Letter,
            _ => Class::Other,
        }),
        _ => None,
    }
}

/// True if normalization to NFC may replace this character, whose [`class`] is known.
fn may_change(c: char) -> bool {
    matches!(c, '\u{370}'..='\u{3ff}' | '\u{2000}'..='\u{200f}' | '\u{2300}'..='\u{23ff}')
}

fn char_at(text: &str, at: usize) -> Option<(char, Class)> {
    let c = text[at..].chars().next()?;
    Some((c, class(c).unwrap_or(Class::Other)))
}

/// Returns the end of the run of characters of class `of` that starts at `at`. The run has at most `most` characters.
fn run(text: &str, at: usize, of: Class, most: usize) -> usize {
    let rest = &text[at..];
    let mut others = rest.char_indices().take(most).skip_while(|&(_, c)| class(c).unwrap_or(Class::Other) == of);
    match others.next() {
        Some((end, _)) => at + end,
        None => at + rest.char_indices().nth(most).map_or(rest.len(), |(end, _)| end),
    }
}

/// Returns the end of the white space at `at`. If a word follows, leaves out the last of several white-space
/// characters.
fn space(text: &str, at: usize) -> usize {
    let end = run(text, at, Class::Space, usize::MAX);
    let last = text[at..end].chars().next_back().map_or(0, char::len_utf8);
    if end == text.len() || end - last == at { end } else { end - last }
}

/// Returns the length of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at the start of `rest`, or 0.
fn contraction(rest: &[u8], ignores_case: bool) -> usize {
    let letter = |at: usize| match rest.get(at) {
        Some(byte) if ignores_case => byte.to_ascii_lowercase(),
        byte => byte.copied().unwrap_or(0),
    };
    match (rest.first(), letter(1), letter(2)) {
        (Some(b'\''), b's' | b't' | b'm' | b'd', _) => 2,
        (Some(b'\''), b'r' | b'v', b'e') | (Some(b'\''), b'l', b'l') => 3,
        _ => 0,
    }
}

fn gpt2_word(text: &str, at: usize) -> usize {
    let short = contraction(&text.as_bytes()[at..], false);
    if short > 0 {
        return at + short;
    }
    let Some((first, of)) = char_at(text, at) else { return text.len() };
    match char_at(text, at + first.len_utf8()) {
        Some((_, next)) if first == ' ' && next != Class::Space => run(text, at + 1, next, usize::MAX),
        _ if of == Class::Space => space(text, at),
        _ => run(text, at, of, usize::MAX),
    }
}

fn llama3_word(text: &str, at: usize, digits: usize) -> usize {
    let short = contraction(&text.as_bytes()[at..], true);
    if short > 0 {
        return at + short;
    }
    let Some((first, of)) = char_at(text, at) else { return text.len() };
    let behind = at + first.len_utf8();
    let next = char_at(text, behind).map(|(_, next)| next);
    let is_line_end = |c: char| c == '\r' || c == '\n';
    match (of, next) {
        (Class::Letter, _) => run(text, at, of, usize::MAX),
        (Class::Number, _) => run(text, at, of, digits),
        (_, Some(Class::Letter)) if !is_line_end(first) => run(text, behind, Class::Letter, usize::MAX),
        (Class::Other, _) | (Class::Space, Some(Class::Other)) if of == Class::Other || first == ' ' => {
            let end = run(text, if of == Class::Other { at } else { behind }, Class::Other, usize::MAX);
            let rest = &text[end..];
            end + rest.len() - rest.trim_start_matches(is_line_end).len()
        }
        _ => {
            let end = run(text, at, Class::Space, usize::MAX);
            match text[at..end].rfind(is_line_end) {
                Some(line) => at + line + 1,
                None => space(text, at),
            }
        }
    }
}
