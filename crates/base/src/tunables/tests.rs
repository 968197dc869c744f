//! Tests of tunables: parser, bounds, freeze, docs.

use proptest::prelude::*;

use super::*;

crate::tunables! {
    /// Tunables of the tests.
    table TestTunables;
    /// Lists of each kind,
    /// 0 for the default.
    sublists: u32 = 0, 0..=1024, build, "count";
    /// A shift.
    overflow_shift: u32 = 8, 1..=16, runtime, "shift";
    /// Any number.
    seed: u64 = 7, 0..=u64::MAX, runtime, "none";
    /// A size | of things.
    budget: bytes = 64 << 20, 1 << 10..=1 << 40, runtime, "bytes";
    /// A share.
    floor: percent = 10, 0..=400, runtime, "percent";
    /// A switch.
    verify: bool = false, false..=true, build, "flag";
}

#[test]
fn defaults_and_setters() {
    let tunables = TestTunables::default();
    assert_eq!(tunables.sublists(), 0);
    assert_eq!(tunables.overflow_shift(), 8);
    assert_eq!(tunables.seed(), 7);
    assert_eq!(tunables.budget(), 64 << 20);
    assert_eq!(tunables.floor(), 10);
    assert!(!tunables.verify());

    tunables.set_sublists(1024).unwrap();
    tunables.set_seed(u64::MAX).unwrap();
    tunables.set_verify(true).unwrap();
    tunables.set("budget", "2G").unwrap();
    tunables.set("floor", "25%").unwrap();
    assert_eq!(tunables.sublists(), 1024);
    assert_eq!(tunables.seed(), u64::MAX);
    assert!(tunables.verify());
    assert_eq!(tunables.budget(), 2 << 30);
    assert_eq!(tunables.floor(), 25);
    assert_eq!(tunables.get("verify").unwrap(), "true");
    assert_eq!(
        format!("{tunables:?}"),
        r#"{"sublists": "1024", "overflow_shift": "8", "seed": "18446744073709551615", "budget": "2GiB", "floor": "25%", "verify": "true"}"#
    );
}

#[test]
fn freeze_refuses_build_rows_only() {
    let tunables = TestTunables::default();
    tunables.freeze();
    let refused = Err(TunableError::NotAtRuntime { name: "sublists" });
    assert_eq!(tunables.set("sublists", "3"), refused);
    assert_eq!(tunables.set_sublists(3), refused);
    assert_eq!(tunables.sublists(), 0);
    tunables.set_overflow_shift(16).unwrap();
    tunables.set("overflow_shift", "1").unwrap();
    assert_eq!(tunables.overflow_shift(), 1);
}

#[test]
fn messages_name_cause_and_remedy() {
    let tunables = TestTunables::default();
    let message = |name, text| tunables.set(name, text).unwrap_err().to_string();
    assert_eq!(
        message("overflow-shfit", "1"),
        "unknown tunable `overflow-shfit`; did you mean `overflow_shift`?"
    );
    assert_eq!(message("zzzzzz", "1"), "unknown tunable `zzzzzz`");
    assert_eq!(
        message("overflow_shift", "ten"),
        "cannot set `overflow_shift`: `ten` is not a whole number"
    );
    assert_eq!(
        message("overflow_shift", "17"),
        "cannot set `overflow_shift` to 17: it must be 1 to 16 (unit: shift)"
    );
    assert_eq!(
        message("seed", "18446744073709551616"),
        "cannot set `seed` to 18446744073709551616: it must be at least 0 (unit: none)"
    );
    assert_eq!(
        message("budget", "1023"),
        "cannot set `budget` to 1023: it must be 1KiB to 1TiB (unit: bytes)"
    );
    assert_eq!(message("verify", "perhaps"), "cannot set `verify`: `perhaps` is not true or false");
    tunables.freeze();
    assert_eq!(
        message("verify", "true"),
        "cannot set `verify` at run time: set it when its owner is built"
    );
    assert_eq!(tunables.get("nonsense").unwrap_err().to_string(), "unknown tunable `nonsense`");
}

#[test]
fn bytes_are_parsed_with_their_units() {
    let read = |text| text::parse(ValueType::Bytes, text);
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        ("12B", 12),
        ("64k", 64 << 10),
        (" 64 KiB ", 64 << 10),
        ("3M", 3 << 20),
        ("3mib", 3 << 20),
        ("1G", 1 << 30),
        ("5TiB", 5 << 40),
        ("15E", 15 << 60),
    ] {
        assert_eq!(read(text), Ok(bytes), "{text}");
    }
    for text in ["", "K", "1.5G", "-1", "+1", "1KB", "1 0", "0x10", "1KK", "½"] {
        assert_eq!(read(text), Err(ParseFailure::Invalid), "{text}");
    }
    for text in ["16E", "18446744073709551616", "99999999999999T"] {
        assert_eq!(read(text), Err(ParseFailure::TooLarge), "{text}");
    }
}

#[test]
fn markdown_has_a_line_per_row() {
    let text = markdown(TestTunables::ROWS);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2 + TestTunables::ROWS.len());
    assert_eq!(
        lines[2],
        "| `sublists` | u32 | 0 to 1024 | 0 | count | build | Lists of each kind, 0 for the default. |"
    );
    assert_eq!(
        lines[5],
        "| `budget` | bytes | 1KiB to 1TiB | 64MiB | bytes | runtime | A size \\| of things. |"
    );
}

fn any_type() -> impl Strategy<Value = ValueType> {
    prop::sample::select(vec![
        ValueType::U32,
        ValueType::U64,
        ValueType::Bool,
        ValueType::Bytes,
        ValueType::Percent,
    ])
}

proptest! {
    #[test]
    fn formatted_values_parse_to_the_same_value(ty in any_type(), number in any::<u64>(), shift in 0..64u32) {
        let raw = (number >> shift << (shift / 2)).min(ty.max());
        prop_assert_eq!(text::parse(ty, &text::format(ty, raw)), Ok(raw));
    }

    #[test]
    fn any_text_is_a_value_or_an_error(ty in any_type(), text in "\\PC{0,20}|[0-9]{1,22}[ %A-Za-z]{0,4}") {
        if let Ok(raw) = text::parse(ty, &text) {
            prop_assert!(raw <= ty.max());
            prop_assert_eq!(text::parse(ty, &text::format(ty, raw)), Ok(raw));
        }
    }

    #[test]
    fn values_stay_in_range(value in any::<u32>(), small in 0..20u32, pick in any::<bool>()) {
        let value = if pick { value } else { small };
        let tunables = TestTunables::default();
        let typed = tunables.set_overflow_shift(value);
        prop_assert_eq!(typed.is_ok(), (1..=16).contains(&value));
        let after = tunables.overflow_shift();
        prop_assert_eq!(after, if typed.is_ok() { value } else { 8 });
        prop_assert_eq!(tunables.set("overflow_shift", &value.to_string()), typed);
        prop_assert_eq!(tunables.overflow_shift(), after);
    }

    /// A name with one wrong letter gets a suggestion.
    #[test]
    fn a_misspelled_name_gets_a_suggestion(row in 0..TestTunables::ROWS.len(), at in 0..4usize, letter in "[a-z]") {
        let name = TestTunables::ROWS[row].name;
        let mut misspelled = name.to_owned();
        misspelled.replace_range(at..=at, &letter);
        prop_assume!(misspelled != name);
        match TestTunables::default().get(&misspelled) {
            Err(TunableError::Unknown { nearest, .. }) => prop_assert_eq!(nearest, Some(name)),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
