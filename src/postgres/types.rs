//! What a column's type means: domains followed to their base, arrays to their elements, extensions known
//! by their owner rather than by a name that anybody may use.
//!
//! Only types that somebody asks for are looked up, so that types nobody publishes cannot matter.

use std::collections::HashMap;

use super::{error::Error, quote, wire::TextRow};
use crate::{model::ValueType, pgoutput::builtin_value_type};

/// A type as `pg_type` has it.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    schema: String,
    /// The base of a domain.
    base: Option<u32>,
    /// The element of a true array.
    element: Option<u32>,
    delimiter: u8,
    hstore: bool,
    operator_schema: String,
}

/// Types by oid, as far as they were asked for.
#[derive(Debug, Default)]
pub(super) struct Types(HashMap<u32, Row>);

/// How to write a value of a key's type in SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyType {
    /// The base type, quoted, for a cast without length limits.
    pub(super) cast: String,
    /// The schema of the comparison operators of its default order.
    pub(super) operator_schema: String,
}

impl Types {
    /// The query for those of `oids` that are not known yet; none if all are.
    pub(super) fn query_for(&self, oids: impl IntoIterator<Item = u32>) -> Option<String> {
        let mut missing: Vec<u32> = oids.into_iter().filter(|oid| !self.0.contains_key(oid)).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return None;
        }
        let list: Vec<String> = missing.iter().map(u32::to_string).collect();
        // int2vector and oidvector (22, 30) have elements, but are not written as arrays. The operators are
        // those of the type's own default btree order, else (varchar, enums, arrays …) the system's.
        Some(format!(
            "with recursive wanted(oid) as (
               select unnest('{{{}}}'::oid[])
               union
               select case when t.typtype = 'd' then t.typbasetype else t.typelem end
               from wanted w join pg_type t on t.oid = w.oid
               where t.typtype = 'd' or (t.typcategory = 'A' and t.typelem <> 0 and t.oid not in (22, 30))
             )
             select t.oid, t.typname, n.nspname,
               case when t.typtype = 'd' then t.typbasetype end,
               case when t.typtype <> 'd' and t.typcategory = 'A' and t.typelem <> 0 and t.typlen = -1
                 and t.oid not in (22, 30) then t.typelem end,
               ascii(t.typdelim::text),
               t.typname = 'hstore' and exists (
                 select from pg_depend d join pg_extension e on e.oid = d.refobjid
                 where d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
                   and d.refclassid = 'pg_extension'::regclass and e.extname = 'hstore'),
               coalesce((
                 select ns.nspname from pg_opclass c
                 join pg_am am on am.oid = c.opcmethod and am.amname = 'btree'
                 join pg_amop o on o.amopfamily = c.opcfamily and o.amopstrategy = 5
                   and o.amoplefttype = t.oid and o.amoprighttype = t.oid
                 join pg_operator op on op.oid = o.amopopr
                 join pg_namespace ns on ns.oid = op.oprnamespace
                 where c.opcintype = t.oid and c.opcdefault limit 1), 'pg_catalog')
             from wanted w join pg_type t on t.oid = w.oid join pg_namespace n on n.oid = t.typnamespace",
            list.join(",")
        ))
    }

    /// Whether all of these were found, once they were asked for.
    pub(super) fn know(&self, oids: impl IntoIterator<Item = u32>) -> bool {
        oids.into_iter().all(|oid| self.0.contains_key(&oid))
    }

    /// Takes in what [`query_for`](Self::query_for) answered.
    pub(super) fn absorb(&mut self, rows: Vec<TextRow>) -> Result<(), Error> {
        for row in rows {
            let text = |at: usize| row.get(at).and_then(Option::as_deref);
            let oid = |at: usize| text(at).and_then(|text| text.parse::<u32>().ok());
            let read = || {
                let found = Row {
                    name: text(1)?.to_owned(),
                    schema: text(2)?.to_owned(),
                    base: oid(3),
                    element: oid(4),
                    delimiter: text(5)?.parse().ok()?,
                    hstore: text(6)? == "t",
                    operator_schema: text(7)?.to_owned(),
                };
                Some((oid(0)?, found))
            };
            let (oid, found) =
                read().ok_or_else(|| Error::protocol("pg_type has a row that makes no sense"))?;
            self.0.insert(oid, found);
        }
        Ok(())
    }

    /// The base of a domain at any depth; the type itself otherwise. The server keeps these acyclic.
    fn base(&self, oid: u32) -> Option<(u32, &Row)> {
        let mut oid = oid;
        loop {
            let row = self.0.get(&oid)?;
            match row.base {
                Some(base) if base != oid => oid = base,
                _ => return Some((oid, row)),
            }
        }
    }

    /// How the text of a column is read; text for a type that is gone or unknown.
    pub(super) fn value_type(&self, oid: u32) -> ValueType {
        if let Some(builtin) = builtin_value_type(oid) {
            return builtin;
        }
        let Some((oid, row)) = self.base(oid) else { return ValueType::Text };
        if let Some(builtin) = builtin_value_type(oid) {
            return builtin;
        }
        match row.element {
            Some(element) if element != oid => {
                let delimiter = self.0.get(&element).map_or(b',', |element| element.delimiter);
                ValueType::Array(Box::new(self.value_type(element)), delimiter)
            }
            _ if row.hstore => ValueType::Hstore,
            _ => ValueType::Text,
        }
    }

    /// How to write a key of this type.
    pub(super) fn key_type(&self, oid: u32) -> Result<KeyType, Error> {
        let (_, row) =
            self.base(oid).ok_or_else(|| Error::protocol(format!("type {oid} of a key is not known")))?;
        Ok(KeyType {
            cast: format!("{}.{}", quote::identifier(&row.schema), quote::identifier(&row.name)),
            operator_schema: quote::identifier(&row.operator_schema),
        })
    }
}
