//! The small shop that the demo, the load and many tests work on: products, orders and customers, twelve typed
//! columns each, rows of about half a kilobyte. Rows are computed by the server from their number, so filling
//! is fast and the same everywhere.

use anyhow::Result;
use tokio_postgres::Client;

/// The three tables.
pub const SCHEMA: &str = "
create table public.products (
    id bigint primary key,
    sku text not null,
    name text not null,
    description text not null,
    category text not null,
    price numeric(10, 2) not null,
    stock integer not null,
    active boolean not null,
    tags text[] not null,
    attributes jsonb not null,
    created_at timestamptz not null,
    updated_at timestamptz not null
);
create type public.order_status as enum ('draft', 'open', 'paid', 'shipped', 'cancelled');
create table public.orders (
    id bigint primary key,
    customer text not null,
    status public.order_status not null,
    currency char(3) not null,
    total numeric(12, 2) not null,
    items jsonb not null,
    shipping jsonb not null,
    weight_kg double precision not null,
    gift boolean not null,
    note text,
    placed_at timestamptz not null,
    deliver_on date
);
create table public.customers (
    id uuid primary key,
    email text not null,
    name text not null,
    phone text,
    country char(2) not null,
    vip boolean not null,
    points integer not null,
    balance numeric(12, 2) not null,
    preferences jsonb not null,
    birthday date,
    signed_up_at timestamptz not null,
    last_seen_at timestamp
);
";

/// What the plugin `product-search` makes of `public.products`, in SQL, for the [checker](crate::checker).
pub const PRODUCT_DOCUMENTS: &str = "
select id, jsonb_build_object(
    'title', name, 'text', description, 'price', price, 'tags', tags, 'attributes', attributes
) as document
from public.products
where active";

/// What the plugin `order-summary` makes of `public.orders`.
pub const ORDER_DOCUMENTS: &str = "
select id, jsonb_build_object(
    'title', format('Order %s of %s', id, customer), 'status', status, 'total', total, 'currency', 'EUR',
    'day', to_char(placed_at at time zone 'UTC', 'YYYY-MM-DD')
) as document
from public.orders
where status <> 'draft'";

/// How many rows each table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of `public.products`, with the ids 1 to this.
    pub products: u64,
    /// Rows of `public.orders`, with the ids 1 to this.
    pub orders: u64,
    /// Rows of `public.customers`.
    pub customers: u64,
}

impl Size {
    /// Shares out a number of rows: four tenths products, half orders, the rest customers.
    pub fn of(rows: u64) -> Self {
        let (products, orders) = (rows * 4 / 10, rows / 2);
        Self { products, orders, customers: rows - products - orders }
    }
}

/// Creates the tables and fills them, in a few statements.
pub async fn create(client: &Client, size: Size) -> Result<()> {
    client.batch_execute(SCHEMA).await?;
    fill(client, size).await
}

/// Fills empty tables. Each statement is a transaction of its own.
pub async fn fill(client: &Client, size: Size) -> Result<()> {
    client.batch_execute(&insert_products(1, size.products, 0)).await?;
    client.batch_execute(&insert_orders(1, size.orders, 0)).await?;
    client.batch_execute(&insert_customers(1, size.customers)).await?;
    client.batch_execute("analyze public.products, public.orders, public.customers").await?;
    Ok(())
}

/// The statement that inserts the products `first` to `last`. Another `salt` gives other values.
pub fn insert_products(first: u64, last: u64, salt: u64) -> String {
    format!(
        "insert into public.products
         select g, 'SKU-' || lpad(g::text, 9, '0'),
             (array['Oak', 'Steel', 'Linen', 'Copper', 'Glass', 'Ash', 'Wool'])[1 + h % 7] || ' '
                 || (array['chair', 'lamp', 'table', 'shelf', 'kettle', 'blanket'])[1 + h / 7 % 6] || ' ' || g,
             repeat((array['Made to be used every day. ', 'Ships in a flat box. ', 'Größe nach Maß. ',
                 'Cleans with a damp cloth. '])[1 + h % 4], 6 + h % 6),
             (array['furniture', 'light', 'kitchen', 'textile', 'garden'])[1 + h % 5],
             (h % 100000)::numeric / 100, h % 500, h % 10 <> 0,
             array['tag' || h % 20, 'tag' || h / 20 % 20],
             jsonb_build_object('colour', (array['red', 'green', 'blue', 'black'])[1 + h % 4],
                 'width_mm', h % 2000, 'eco', h % 3 = 0, 'batch', md5(h::text)),
             timestamptz '2024-01-01 00:00:00+00' + make_interval(secs => h % 50000000),
             timestamptz '2026-01-01 00:00:00+00' + make_interval(secs => (h::bigint + {salt}) % 10000000)
         from generate_series({first}::bigint, {last}::bigint) as g,
             lateral (select (hashint8(g + {salt}) & 2147483647)::integer as h) as hash;"
    )
}

/// The statement that inserts the orders `first` to `last`.
pub fn insert_orders(first: u64, last: u64, salt: u64) -> String {
    format!(
        "insert into public.orders
         select g, (array['Ada', 'Bela', 'Chidi', 'Dora', 'Emre'])[1 + h % 5] || ' '
                 || (array['Lind', 'Okafor', 'Rossi', 'Novak'])[1 + h / 5 % 4],
             (enum_range(null::public.order_status))[1 + h / 20 % 5],
             (array['EUR', 'USD', 'GBP'])[1 + h % 3], (h % 1000000)::numeric / 100,
             jsonb_build_array(
                 jsonb_build_object('product', 1 + h % 1000, 'quantity', 1 + h % 4, 'price', (h % 10000)::numeric / 100),
                 jsonb_build_object('product', 1 + h / 7 % 1000, 'quantity', 1 + h % 2, 'price', 9.90)),
             jsonb_build_object('street', 'Long Street ' || h % 200, 'city',
                 (array['Lyon', 'Kraków', 'Malmö', 'Porto'])[1 + h % 4], 'postcode', lpad((h % 99999)::text, 5, '0')),
             (h % 40000) / 1000.0::double precision, h % 9 = 0,
             case when h % 4 = 0 then repeat('Leave with the neighbour. ', 1 + h % 5) end,
             timestamptz '2025-01-01 00:00:00+00' + make_interval(secs => h % 40000000),
             case when h % 6 <> 0 then date '2025-01-03' + h % 500 end
         from generate_series({first}::bigint, {last}::bigint) as g,
             lateral (select (hashint8(g + {salt}) & 2147483647)::integer as h) as hash;"
    )
}

/// The statement that inserts the customers of the numbers `first` to `last`.
pub fn insert_customers(first: u64, last: u64) -> String {
    format!(
        "insert into public.customers
         select md5(g::text)::uuid, 'customer' || g || '@example.com',
             (array['Ada', 'Bela', 'Chidi', 'Dora', 'Emre'])[1 + h % 5] || ' '
                 || (array['Lind', 'Okafor', 'Rossi', 'Novak'])[1 + h % 4],
             case when h % 3 <> 0 then '+49' || h end, (array['DE', 'FR', 'IT', 'SE'])[1 + h % 4],
             h % 20 = 0, h % 10000, (h % 500000)::numeric / 100,
             jsonb_build_object('newsletter', h % 2 = 0, 'language', (array['de', 'en', 'fr'])[1 + h % 3]),
             case when h % 5 <> 0 then date '1950-01-01' + h % 20000 end,
             timestamptz '2020-01-01 00:00:00+00' + make_interval(secs => h % 100000000),
             timestamp '2026-01-01 00:00:00' + make_interval(secs => h % 10000000)
         from generate_series({first}::bigint, {last}::bigint) as g,
             lateral (select (hashint8(g) & 2147483647)::integer as h) as hash;"
    )
}
