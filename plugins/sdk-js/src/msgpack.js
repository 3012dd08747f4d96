/** MessagePack, as far as sinks need it (`wit/v1/payload-msgpack.md`): bodies are framed there, and so come as they are. */

const [decoder, encoder] = [new TextDecoder(), new TextEncoder()];

/** The value of some bytes: maps are objects, bin is a Uint8Array, integers beyond 2^53 are bigint. Throws a RangeError. */
export function decode(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const take = (count) => {
    at += count;
    return at - count;
  };
  const part = (length) => {
    const start = take(length);
    return bytes.subarray(start, start + length);
  };
  const unsigned = (width) => {
    const start = take(width);
    if (width === 1) return view.getUint8(start);
    if (width === 2) return view.getUint16(start);
    return width === 4 ? view.getUint32(start) : exact(view.getBigUint64(start));
  };
  const signed = (width) => {
    const start = take(width);
    if (width === 1) return view.getInt8(start);
    if (width === 2) return view.getInt16(start);
    return width === 4 ? view.getInt32(start) : exact(view.getBigInt64(start));
  };
  const text = (length) => decoder.decode(part(length));
  const array = (length) => {
    const items = [];
    for (let index = 0; index < length; index++) items.push(value());
    return items;
  };
  const map = (length) => {
    const entries = new Map();
    for (let index = 0; index < length; index++) entries.set(value(), value());
    return Object.fromEntries(entries);
  };
  const value = () => {
    const tag = unsigned(1);
    if (tag < 0x80) return tag;
    if (tag < 0x90) return map(tag & 0x0f);
    if (tag < 0xa0) return array(tag & 0x0f);
    if (tag < 0xc0) return text(tag & 0x1f);
    if (tag >= 0xe0) return tag - 0x100;
    switch (tag) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return part(unsigned(1 << (tag - 0xc4)));
      case 0xca: return view.getFloat32(take(4));
      case 0xcb: return view.getFloat64(take(8));
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return unsigned(1 << (tag - 0xcc));
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return signed(1 << (tag - 0xd0));
      case 0xd9: case 0xda: case 0xdb: return text(unsigned(1 << (tag - 0xd9)));
      case 0xdc: case 0xdd: return array(unsigned(2 << (tag - 0xdc)));
      case 0xde: case 0xdf: return map(unsigned(2 << (tag - 0xde)));
      default: throw new RangeError(`a value begins with 0x${tag.toString(16)}`);
    }
  };
  const whole = value();
  if (at !== bytes.length) throw new RangeError("something follows it");
  return whole;
}

function exact(integer) {
  const number = Number(integer);
  return Number.isSafeInteger(number) ? number : integer;
}

/** The bytes of null, booleans, integers, strings, Uint8Arrays, arrays and objects. */
export function encode(value) {
  const out = [];
  const big = (integer, bytes) => {
    for (let at = bytes - 1; at >= 0; at--) out.push(Number((integer >> BigInt(8 * at)) & 0xffn));
  };
  const head = (length, small, most, tags) => {
    if (length <= most) out.push(small | length);
    else if (tags.length === 3 && length < 1 << 8) out.push(tags[0], length);
    else if (length < 1 << 16) out.push(tags.at(-2), length >> 8, length & 0xff);
    else {
      out.push(tags.at(-1));
      big(BigInt(length), 4);
    }
  };
  const push = (bytes) => {
    for (let at = 0; at < bytes.length; at++) out.push(bytes[at]);
  };
  const write = (item) => {
    if (item === null || item === undefined) return out.push(0xc0);
    if (typeof item === "boolean") return out.push(item ? 0xc3 : 0xc2);
    if (typeof item === "number" && item >= 0 && item < 0x80) return out.push(item);
    if (typeof item === "number" || typeof item === "bigint") {
      out.push(item < 0 ? 0xd3 : 0xcf);
      return big(BigInt.asUintN(64, BigInt(item)), 8);
    }
    if (typeof item === "string") {
      const bytes = encoder.encode(item);
      head(bytes.length, 0xa0, 31, [0xd9, 0xda, 0xdb]);
      return push(bytes);
    }
    if (item instanceof Uint8Array) {
      head(item.length, 0, -1, [0xc4, 0xc5, 0xc6]);
      return push(item);
    }
    if (Array.isArray(item)) {
      head(item.length, 0x90, 15, [0xdc, 0xdd]);
      return item.forEach(write);
    }
    const entries = Object.entries(item);
    head(entries.length, 0x80, 15, [0xde, 0xdf]);
    return entries.flat(1).forEach(write);
  };
  write(value);
  return Uint8Array.from(out);
}
