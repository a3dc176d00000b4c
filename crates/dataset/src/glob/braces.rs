// SPDX-License-Identifier: Apache-2.0
//! Expands the braces of a pattern as shells and WebDataset do: `{a,b}`, `{000..127}`, `{a..f}`, `{0..90..10}`,
//! and nested braces.
//!
//! A range of numbers without a step becomes a few patterns with character classes: `{08..12}` becomes `0[8-9]` and
//! `1[0-2]`. The number of patterns grows only with the number of digits. Braces without a comma or a range are
//! literal.

/// Maximum number of patterns that one pattern expands to. When this number is reached, further braces stay unexpanded.
const MAX_PATTERNS: usize = 1 << 20;

/// A brace expression that can be expanded.
struct Brace<'a> {
    begin: usize,
    /// Position after the closing `}`.
    end: usize,
    inner: &'a [u8],
}

/// Position of the first brace expression that can be expanded.
pub(super) fn first(pattern: &[u8]) -> Option<usize> {
    find(pattern).map(|brace| brace.begin)
}

/// Expands a pattern into patterns without braces. A pattern without braces is returned unchanged.
pub(super) fn expand(pattern: &[u8]) -> Vec<Vec<u8>> {
    expand_by(pattern, MAX_PATTERNS, |range| range.patterns())
}

/// Like [`expand`], but each number or letter of a range becomes a pattern. `None` for more than `max` patterns.
pub(super) fn expand_each(pattern: &[u8], max: usize) -> Option<Vec<Vec<u8>>> {
    let all = expand_by(pattern, max, |range| range.members(max));
    (all.len() <= max && all.iter().all(|each| first(each).is_none())).then_some(all)
}

fn expand_by(pattern: &[u8], max: usize, choices: impl Fn(&Range) -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut done = Vec::new();
    let mut open = vec![pattern.to_vec()];
    while let Some(each) = open.pop() {
        match find(&each).filter(|_| done.len() + open.len() < max) {
            None => done.push(each),
            Some(brace) => {
                let (before, after) = (&each[..brace.begin], &each[brace.end..]);
                let choices = Range::new(brace.inner).map_or_else(|| split(brace.inner), |range| choices(&range));
                open.extend(choices.iter().rev().map(|choice| [before, choice, after].concat()));
            }
        }
    }
    done
}

fn find(pattern: &[u8]) -> Option<Brace<'_>> {
    let begins = pattern.iter().enumerate().filter(|(_, byte)| **byte == b'{').map(|(at, _)| at);
    begins.into_iter().find_map(|begin| {
        let mut depth = 0_usize;
        let len = pattern[begin..].iter().position(|byte| {
            depth += usize::from(*byte == b'{');
            depth -= usize::from(*byte == b'}' && depth > 0);
            depth == 0
        })?;
        let inner = &pattern[begin + 1..begin + len];
        let is_expandable = split(inner).len() > 1 || Range::new(inner).is_some();
        is_expandable.then_some(Brace { begin, end: begin + len + 1, inner })
    })
}

/// Splits the content of a brace expression at its commas, except at commas inside nested braces.
fn split(inner: &[u8]) -> Vec<Vec<u8>> {
    let mut depth = 0_usize;
    let at_comma = |byte: &u8| {
        depth += usize::from(*byte == b'{');
        depth = depth.saturating_sub(usize::from(*byte == b'}'));
        *byte == b',' && depth == 0
    };
    inner.split(at_comma).map(<[u8]>::to_vec).collect()
}

/// A range such as `000..127`, `a..f` or `0..90..10`, in which the last number is the step.
struct Range {
    first: u64,
    last: u64,
    step: u64,
    is_letters: bool,
    /// Numbers are padded with zeros to this width.
    width: usize,
}

impl Range {
    /// Parses a range; `None` for other text. The order of a range has no effect, so a descending range becomes an
    /// ascending one.
    fn new(inner: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(inner).ok()?;
        let mut parts = text.split("..");
        let (from, to, step) = (parts.next()?, parts.next()?, parts.next());
        if parts.next().is_some() {
            return None;
        }
        let number = |text: &str| -> Option<u64> {
            let is_number = (1..19).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().ok())?
        };
        let step = step.map_or(Some(1), |step| number(step.strip_prefix('-').unwrap_or(step)))?.max(1);
        let letters = match (from.as_bytes(), to.as_bytes()) {
            (&[from], &[to]) if from.is_ascii_alphabetic() && to.is_ascii_alphabetic() => {
                Some((u64::from(from), u64::from(to)))
            }
            _ => None,
        };
        let (from_value, to_value) = letters.or_else(|| Some((number(from)?, number(to)?)))?;
        let (low, high) = (from_value.min(to_value), from_value.max(to_value));
        // The steps start at the number that is written first.
        let (first, last) =
            if from_value <= to_value { (low, high - (high - low) % step) } else { (low + (high - low) % step, high) };
        // A range with a step is expanded to its members. A range with too many members stays literal.
        if step > 1 && (last - first) / step >= MAX_PATTERNS as u64 {
            return None;
        }
        let is_padded = [from, to].iter().any(|text| text.len() > 1 && text.starts_with('0'));
        let width = if is_padded { from.len().max(to.len()) } else { 1 };
        Some(Self { first, last, step, is_letters: letters.is_some(), width })
    }

    /// Patterns that match the members of the range.
    fn patterns(&self) -> Vec<Vec<u8>> {
        if self.step > 1 {
            return self.members(MAX_PATTERNS);
        }
        if self.is_letters {
            let [first, last] = [self.first, self.last].map(letter);
            return vec![vec![b'[', first, b'-', last, b']']];
        }
        let [from, to] = [self.first, self.last].map(|number| self.text(number));
        let mut found = Vec::new();
        for width in from.len()..=to.len() {
            let least = if width == from.len() { from.clone() } else { format!("1{}", "0".repeat(width - 1)) };
            let most = if width == to.len() { to.clone() } else { "9".repeat(width) };
            of_width(least.as_bytes(), most.as_bytes(), Vec::new(), &mut found);
        }
        found
    }

    /// The first `max + 1` members.
    fn members(&self, max: usize) -> Vec<Vec<u8>> {
        let step = usize::try_from(self.step).unwrap_or(usize::MAX);
        (self.first..=self.last).step_by(step).take(max + 1).map(|number| self.text(number).into_bytes()).collect()
    }

    fn text(&self, member: u64) -> String {
        if self.is_letters { char::from(letter(member)).to_string() } else { format!("{member:0w$}", w = self.width) }
    }
}

fn letter(code: u64) -> u8 {
    u8::try_from(code).unwrap_or_default()
}

/// Appends to `found` the patterns that match the numbers from `low` to `high`, which have the same number of digits.
fn of_width(low: &[u8], high: &[u8], before: Vec<u8>, found: &mut Vec<Vec<u8>>) {
    let ([a, low_rest @ ..], [b, high_rest @ ..]) = (low, high) else {
        found.push(before);
        return;
    };
    let with = |more: &[u8]| [&before[..], more].concat();
    if a == b {
        return of_width(low_rest, high_rest, with(&[*a]), found);
    }
    let (is_from_0, is_to_9) = (low_rest.iter().all(|&byte| byte == b'0'), high_rest.iter().all(|&byte| byte == b'9'));
    if !is_from_0 {
        of_width(low_rest, &vec![b'9'; low_rest.len()], with(&[*a]), found);
    }
    let (first, last) = (a + u8::from(!is_from_0), b - u8::from(!is_to_9));
    if first <= last {
        let class = if first == last { vec![first] } else { vec![b'[', first, b'-', last, b']'] };
        found.push([&with(&class)[..], &b"[0-9]".repeat(low_rest.len())].concat());
    }
    if !is_to_9 {
        of_width(&vec![b'0'; high_rest.len()], high_rest, with(&[*b]), found);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::glob_matches;
    use super::*;

    fn expanded(pattern: &str) -> Vec<String> {
        expand(pattern.as_bytes()).into_iter().map(|each| String::from_utf8(each).unwrap()).collect()
    }

    #[test]
    fn braces_become_what_a_shell_makes_of_them() {
        assert_eq!(expanded("a{b,c}d"), ["abd", "acd"]);
        assert_eq!(expanded("{a,b{1,2}}-{x,y}").len(), 6);
        assert_eq!(expanded("{08..12}"), ["0[8-9]", "1[0-2]"]);
        assert_eq!(expanded("{000000..001023}").len(), 3);
        assert_eq!(expanded("{a..f}"), ["[a-f]"]);
        assert_eq!(expanded("{9..1}"), ["[1-9]"]);
        assert_eq!(expanded("{f..a}"), ["[a-f]"]);
        assert_eq!(expanded("{008..12}"), ["00[8-9]", "01[0-2]"]);
        assert_eq!(expanded("{8..012}"), ["00[8-9]", "01[0-2]"]);
        assert_eq!(expanded("{0..10..5}"), ["0", "5", "10"]);
        assert_eq!(expanded("{10..1..4}"), ["2", "6", "10"]);
        assert_eq!(expanded("{00..4..2}"), ["00", "02", "04"]);
        assert_eq!(expanded("{a..e..2}"), ["a", "c", "e"]);
        assert_eq!(expanded("{1..2..0}"), ["[1-2]"]);
        assert_eq!(expanded("{90..0..-40}"), ["10", "50", "90"]);
        for plain in
            ["{id}", "{", "a}b", "{..}", "{a..}", "{a..5}", "{0..3000000..2}", "{1..2..3..4}", "{1..2..}", "{1..2..x}"]
        {
            assert_eq!(expanded(plain), [plain], "{plain}");
            assert_eq!(first(plain.as_bytes()), None);
        }
    }

    proptest! {
        #[test]
        fn prop_range_takes_its_numbers_and_no_other(low in 0u64..3000, len in 0u64..3000, number in 0u64..9000, padded: bool) {
            let high = low + len;
            let (pattern, name) = if padded {
                (format!("{{{low:06}..{high:06}}}"), format!("{number:06}"))
            } else {
                (format!("{{{low}..{high}}}"), number.to_string())
            };
            let is_in = (low..=high).contains(&number);
            prop_assert_eq!(glob_matches(pattern.as_bytes(), name.as_bytes()), is_in);
            let each = expand_each(pattern.as_bytes(), 3000).unwrap();
            prop_assert_eq!((each.len() as u64, each.contains(&name.into_bytes())), (len + 1, is_in));
        }

        #[test]
        fn prop_expansion_survives_anything(pattern in "[{},.a0-9*]{0,40}") {
            let all = expand(pattern.as_bytes());
            prop_assert!(all.iter().all(|each| first(each).is_none()));
            if let Some(each) = expand_each(pattern.as_bytes(), 1000) {
                prop_assert!(each.len() <= 1000 && each.len() >= all.len());
            }
        }
    }
}
