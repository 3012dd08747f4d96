//! The built-in types by oid (`src/include/catalog/pg_type.dat` of Postgres 14 to 18; oids below 10000 are
//! the same in every cluster). Domains, enums, extension types and everything else that a user made are
//! known only to the catalogue.

use crate::model::ValueType;

/// Built-in scalar types that stay Postgres's own text, with their array's oid where they have one (else 0):
/// "char", name, int2vector, regproc, text, tid, xid, cid, oidvector, xml, the geometric types, network
/// types, money, bpchar, varchar, timetz, bit, varbit, refcursor, the reg* types, uuid, pg_lsn, the text
/// search types, ranges, multiranges, jsonpath, snapshots, xid8.
const TEXT: &[(u32, u32)] = &[
    (18, 1002),
    (19, 1003),
    (22, 1006),
    (24, 1008),
    (25, 1009),
    (27, 1010),
    (28, 1011),
    (29, 1012),
    (30, 1013),
    (142, 143),
    (194, 0),
    (600, 1017),
    (601, 1018),
    (602, 1019),
    (604, 1027),
    (628, 629),
    (650, 651),
    (718, 719),
    (774, 775),
    (790, 791),
    (829, 1040),
    (869, 1041),
    (1033, 1034),
    (1042, 1014),
    (1043, 1015),
    (1266, 1270),
    (1560, 1561),
    (1562, 1563),
    (1790, 2201),
    (2202, 2207),
    (2203, 2208),
    (2204, 2209),
    (2205, 2210),
    (2206, 2211),
    (2950, 2951),
    (2970, 2949),
    (3220, 3221),
    (3361, 0),
    (3402, 0),
    (3614, 3643),
    (3615, 3645),
    (3642, 3644),
    (3734, 3735),
    (3769, 3770),
    (3904, 3905),
    (3906, 3907),
    (3908, 3909),
    (3910, 3911),
    (3912, 3913),
    (3926, 3927),
    (4072, 4073),
    (4089, 4090),
    (4096, 4097),
    (4191, 4192),
    (4451, 6150),
    (4532, 6151),
    (4533, 6152),
    (4534, 6153),
    (4535, 6155),
    (4536, 6157),
    (4600, 0),
    (4601, 0),
    (5017, 0),
    (5038, 5039),
    (5069, 271),
];

/// How the text of a built-in type is read; none for every other oid, which the catalogue must resolve.
#[must_use]
pub fn builtin_value_type(oid: u32) -> Option<ValueType> {
    if let Some(scalar) = scalar(oid) {
        return Some(scalar);
    }
    let element = match oid {
        1000 => 16,
        1001 => 17,
        1005 => 21,
        1007 => 23,
        1016 => 20,
        1028 => 26,
        1021 => 700,
        1022 => 701,
        1231 => 1700,
        1182 => 1082,
        1183 => 1083,
        1115 => 1114,
        1185 => 1184,
        1187 => 1186,
        199 => 114,
        3807 => 3802,
        1020 => 603,
        _ => TEXT.iter().find(|(_, array)| *array == oid && oid != 0)?.0,
    };
    let delimiter = if element == 603 { b';' } else { b',' };
    Some(ValueType::Array(Box::new(scalar(element)?), delimiter))
}

fn scalar(oid: u32) -> Option<ValueType> {
    Some(match oid {
        16 => ValueType::Bool,
        17 => ValueType::Bytea,
        20 | 21 | 23 | 26 => ValueType::Integer,
        700 | 701 => ValueType::Float,
        1700 => ValueType::Numeric,
        1082 => ValueType::Date,
        1083 => ValueType::Time,
        1114 => ValueType::Timestamp,
        1184 => ValueType::TimestampTz,
        1186 => ValueType::Interval,
        114 | 3802 => ValueType::Json,
        603 => ValueType::Text,
        _ => TEXT.binary_search_by_key(&oid, |(scalar, _)| *scalar).ok().map(|_| ValueType::Text)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(element: ValueType, delimiter: u8) -> Option<ValueType> {
        Some(ValueType::Array(Box::new(element), delimiter))
    }

    /// `select oid, typelem from pg_type where typcategory = 'A' and oid < 10000` of Postgres 15, without
    /// the vectors (text of their own form) and the arrays of catalogue rows and of cstring.
    const ARRAYS: &[(u32, u32)] = &[
        (143, 142),
        (199, 114),
        (271, 5069),
        (629, 628),
        (651, 650),
        (719, 718),
        (775, 774),
        (791, 790),
        (1000, 16),
        (1001, 17),
        (1002, 18),
        (1003, 19),
        (1005, 21),
        (1006, 22),
        (1007, 23),
        (1008, 24),
        (1009, 25),
        (1010, 27),
        (1011, 28),
        (1012, 29),
        (1013, 30),
        (1014, 1042),
        (1015, 1043),
        (1016, 20),
        (1017, 600),
        (1018, 601),
        (1019, 602),
        (1020, 603),
        (1021, 700),
        (1022, 701),
        (1027, 604),
        (1028, 26),
        (1034, 1033),
        (1040, 829),
        (1041, 869),
        (1115, 1114),
        (1182, 1082),
        (1183, 1083),
        (1185, 1184),
        (1187, 1186),
        (1231, 1700),
        (1270, 1266),
        (1561, 1560),
        (1563, 1562),
        (2201, 1790),
        (2207, 2202),
        (2208, 2203),
        (2209, 2204),
        (2210, 2205),
        (2211, 2206),
        (2949, 2970),
        (2951, 2950),
        (3221, 3220),
        (3643, 3614),
        (3644, 3642),
        (3645, 3615),
        (3735, 3734),
        (3770, 3769),
        (3807, 3802),
        (3905, 3904),
        (3907, 3906),
        (3909, 3908),
        (3911, 3910),
        (3913, 3912),
        (3927, 3926),
        (4073, 4072),
        (4090, 4089),
        (4097, 4096),
        (4192, 4191),
        (5039, 5038),
        (6150, 4451),
        (6151, 4532),
        (6152, 4533),
        (6153, 4534),
        (6155, 4535),
        (6157, 4536),
    ];

    #[test]
    fn the_list_is_sorted() {
        assert!(TEXT.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn arrays_have_their_elements_type() {
        for &(oid, element) in ARRAYS {
            let delimiter = if oid == 1020 { b';' } else { b',' };
            let element = builtin_value_type(element).unwrap_or_else(|| panic!("{element}"));
            assert_eq!(builtin_value_type(oid), array(element, delimiter), "{oid}");
        }
    }

    #[test]
    fn types_are_what_the_design_says() {
        assert_eq!(builtin_value_type(23), Some(ValueType::Integer));
        assert_eq!(builtin_value_type(26), Some(ValueType::Integer));
        assert_eq!(builtin_value_type(1231), array(ValueType::Numeric, b','));
        assert_eq!(builtin_value_type(1187), array(ValueType::Interval, b','));
        assert_eq!(builtin_value_type(1020), array(ValueType::Text, b';'));
        for text in [18, 790, 1266, 22, 28, 5069, 2950, 869, 3904, 3614, 142] {
            assert_eq!(builtin_value_type(text), Some(ValueType::Text), "{text}");
        }
    }

    #[test]
    fn types_that_users_made_are_left_to_the_catalogue() {
        for oid in [0, 71, 2249, 9999, 12_000, 16_384, u32::MAX] {
            assert_eq!(builtin_value_type(oid), None, "{oid}");
        }
    }
}
