//! What a column's text means.

/// How the text of a column is read, after domains were resolved to their base type at any depth.
///
/// Everything that is not listed (enums, ranges, composites, extension types, unknown oids) is
/// [`ValueType::Text`]: Postgres's own text, never left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// `t` or `f`.
    Bool,
    /// int2, int4, int8 and oid: an integer whose digits are kept exactly.
    Integer,
    /// float4, float8; NaN and the infinities become strings.
    Float,
    /// numeric: a string of plain digits, scale kept.
    Numeric,
    /// Postgres's own text.
    Text,
    /// `2024-01-31`, or Postgres's text outside years 1 to 9999.
    Date,
    /// time without time zone.
    Time,
    /// timestamp without time zone.
    Timestamp,
    /// timestamp with time zone, in UTC.
    TimestampTz,
    /// ISO 8601 duration (the server writes it: `IntervalStyle = iso_8601`).
    Interval,
    /// hex text `\x…`: binary, or base64 in JSON.
    Bytea,
    /// json and jsonb: the structure itself, passed through raw.
    Json,
    /// The hstore extension: a map whose values may be NULL.
    Hstore,
    /// An array with its element type and the type's delimiter (`,` but for `box`: `;`).
    Array(Box<ValueType>, u8),
}

impl ValueType {
    /// The name that plugins see as the type of a column.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Integer => "integer",
            Self::Float => "float",
            Self::Numeric => "numeric",
            Self::Text => "text",
            Self::Date => "date",
            Self::Time => "time",
            Self::Timestamp => "timestamp",
            Self::TimestampTz => "timestamptz",
            Self::Interval => "interval",
            Self::Bytea => "bytea",
            Self::Json => "json",
            Self::Hstore => "hstore",
            Self::Array(..) => "array",
        }
    }
}
