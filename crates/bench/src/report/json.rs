//! Prints one flat JSON object per line. Figures that are not finite are left out, since JSON
//! cannot represent them.

use std::fmt::Write;

use super::{Record, Value};

/// A record as one line of JSON.
pub(super) fn line(record: &Record) -> String {
    let mut out = String::from("{");
    for (name, value) in &record.params {
        separate(&mut out);
        push_text(&mut out, name);
        out.push(':');
        match value {
            Value::Text(text) => push_text(&mut out, text),
            Value::Integer(count) => {
                let _ = write!(out, "{count}");
            }
            Value::Flag(flag) => {
                let _ = write!(out, "{flag}");
            }
        }
    }
    for (name, figure) in record.figures.iter().filter(|(_, f)| f.is_finite()) {
        separate(&mut out);
        push_text(&mut out, name);
        // `{}` of an f64 has no exponent and parses to the same number.
        let _ = write!(out, ":{figure}");
    }
    out.push('}');
    out
}

fn separate(out: &mut String) {
    if out.len() > 1 {
        out.push(',');
    }
}

fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_object_with_escapes() {
        let record = Record::new("evict", "a \"b\"\n", 2)
            .param("copy", true)
            .figure("ops_per_s", 12.5)
            .figure("hit_ratio", f64::NAN);
        assert_eq!(
            line(&record),
            r#"{"bench":"evict","subject":"a \"b\"\u000a","threads":2,"copy":true,"ops_per_s":12.5}"#
        );
    }
}
