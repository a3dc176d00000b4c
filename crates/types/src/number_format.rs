// SPDX-License-Identifier: Apache-2.0
//! Formats numbers for messages.

/// Formats `number` with commas between thousands, for example `2,828,486`.
pub fn with_separators(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::with_separators;

    #[test]
    fn grouped_puts_a_comma_before_every_third_digit() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (2_828_486, "2,828,486")] {
            assert_eq!(with_separators(number), text);
        }
        assert_eq!(with_separators(u64::MAX), "18,446,744,073,709,551,615");
    }
}
