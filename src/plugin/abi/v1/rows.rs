//! Answers to `query`: the bytes of `wit/v1/payload-query.md`.

use crate::{
    model::{Encoding, QueryRows},
    pgoutput::text::{Container, Encoder, JsonEncoder, MsgpackEncoder, encode_cell},
};

use super::request::Unsendable;

/// The version of this payload.
const V: i64 = 1;

/// Writes the rows of each set of parameters.
pub(in crate::plugin) fn write_rows(encoding: Encoding, sets: &[QueryRows]) -> Result<Vec<u8>, Unsendable> {
    let mut out = Vec::new();
    match encoding {
        Encoding::Msgpack => write(&mut MsgpackEncoder::new(&mut out), sets)?,
        Encoding::Json => write(&mut JsonEncoder::new(&mut out), sets)?,
    }
    Ok(out)
}

fn write(out: &mut impl Encoder, sets: &[QueryRows]) -> Result<(), Unsendable> {
    let whole = out.begin(Container::Array);
    out.separate(0);
    out.integer(V);
    out.separate(1);
    let list = out.begin(Container::Array);
    for (index, set) in sets.iter().enumerate() {
        out.separate(index);
        write_set(out, set)?;
    }
    out.end(Container::Array, list, sets.len());
    out.end(Container::Array, whole, 2);
    Ok(())
}

fn write_set(out: &mut impl Encoder, set: &QueryRows) -> Result<(), Unsendable> {
    let pair = out.begin(Container::Array);
    out.separate(0);
    let names = out.begin(Container::Array);
    for (index, (name, _)) in set.columns.iter().enumerate() {
        out.separate(index);
        out.string(name);
    }
    out.end(Container::Array, names, set.columns.len());
    out.separate(1);
    let rows = out.begin(Container::Array);
    for (index, row) in set.rows().enumerate() {
        out.separate(index);
        let cells = out.begin(Container::Array);
        for (index, (cell, (name, value_type))) in row.iter().zip(&set.columns).enumerate() {
            out.separate(index);
            encode_cell(value_type, cell.as_deref().map(str::as_bytes), out)
                .map_err(|error| Unsendable { column: name.clone(), error })?;
        }
        out.end(Container::Array, cells, row.len());
    }
    out.end(Container::Array, rows, set.rows().len());
    out.end(Container::Array, pair, 2);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ValueType;

    fn sets() -> Vec<QueryRows> {
        let columns = vec![("id".to_owned(), ValueType::Integer), ("name".to_owned(), ValueType::Text)];
        let mut rows = QueryRows::new(columns);
        rows.cells = vec![Some("7".to_owned()), Some("a\"b".to_owned()), Some("8".to_owned()), None];
        vec![rows, QueryRows::new(vec![("n".to_owned(), ValueType::Bool)])]
    }

    #[test]
    fn the_bytes_are_those_of_the_page() {
        let json = write_rows(Encoding::Json, &sets()).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            r#"[1,[[["id","name"],[[7,"a\"b"],[8,null]]],[["n"],[]]]]"#
        );
        let packed = write_rows(Encoding::Msgpack, &sets()).unwrap();
        let mut reader = packed.as_slice();
        assert_eq!(rmp::decode::read_array_len(&mut reader).unwrap(), 2);
        assert_eq!(rmp::decode::read_int::<i64, _>(&mut reader).unwrap(), 1);
        assert_eq!(rmp::decode::read_array_len(&mut reader).unwrap(), 2);
    }

    #[test]
    fn a_value_that_cannot_be_read_names_its_column() {
        let mut rows = QueryRows::new(vec![("id".to_owned(), ValueType::Integer)]);
        rows.cells.push(Some("x".to_owned()));
        assert_eq!(write_rows(Encoding::Json, &[rows]).unwrap_err().column, "id");
    }
}
