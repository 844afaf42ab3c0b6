#!/usr/bin/env python3
"""Reads a walsidecar log, format version 1, as docs/format.md describes it.

    format_reader.py PATH        a block device, a file, or a copy of either

Prints JSON lines: the superblock slots, then every frame of the log with its items
and records, then the end. Writes nothing. Exits 11 when the log is damaged, 1 when
it is no log or one that this reader must not interpret.
"""
import base64
import json
import struct
import sys

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                      9650029242287828579, 2870177450012600261)
SLOT, RING, HEADER = 64 << 10, 256 << 10, 128
KINDS = {1: "data", 2: "pad", 3: "seal", 4: "checkpoint"}
ITEMS = {1: "batch", 2: "refusal", 3: "stream create", 4: "stream seal", 5: "stream trim", 6: "stream delete",
         7: "stream token", 8: "session producer open", 9: "named producer create", 10: "producer remove",
         11: "session producer expired"}


class Damage(Exception):
    def __init__(self, start, end, reason):
        super().__init__(reason)
        self.start, self.end, self.reason = start, end, reason


class Refused(Exception):
    pass


def xxh64(data):
    def rotl(x, r):
        return ((x << r) | (x >> (64 - r))) & MASK

    def lane(acc, word):
        return (rotl((acc + word * P2) & MASK, 31) * P1) & MASK

    n, at = len(data), len(data) // 32 * 32
    if n >= 32:
        a, b, c, d = (P1 + P2) & MASK, P2, 0, -P1 & MASK
        for w, x, y, z in struct.iter_unpack("<4Q", data[:at]):
            a, b, c, d = lane(a, w), lane(b, x), lane(c, y), lane(d, z)
        h = (rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(d, 18)) & MASK
        for v in (a, b, c, d):
            h = ((h ^ lane(0, v)) * P1 + P4) & MASK
    else:
        h = P5
    h = (h + n) & MASK
    while at + 8 <= n:
        h = (rotl(h ^ lane(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= n:
        h = (rotl(h ^ (struct.unpack_from("<I", data, at)[0] * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = (rotl(h ^ (byte * P5 & MASK), 11) * P1) & MASK
    h = ((h ^ h >> 33) * P2) & MASK
    h = ((h ^ h >> 29) * P3) & MASK
    return h ^ h >> 32


def superblock(slot):
    """The superblock in a slot, or the reason why there is none."""
    if slot[:8] != b"WALSDCR1":
        return "blank"
    length = struct.unpack_from("<I", slot, 12)[0]
    if not 264 <= length <= SLOT - 8 or xxh64(slot[:length]) != struct.unpack_from("<Q", slot, length)[0]:
        return "damaged"
    names = ("major minor length compat ro_compat incompat sequence uuid node epoch incarnation boot_id fence_key block"
             " max_frame capacity format_size window stall_ms checkpoint_max origin durable trim trim_prev_sum flags count")
    sb = dict(zip(names.split(), struct.unpack_from("<8xHHIQQQQ16s64sQ16s16sQIIQQQQQQQQQII", slot)))
    if sb["major"] != 1:
        return "foreign"
    sb["node"] = sb["node"][1:1 + sb["node"][0]].decode("utf-8", "replace")
    sb["uuid_hash"] = xxh64(sb["uuid"])
    for name in ("uuid", "incarnation", "boot_id"):
        sb[name] = sb[name].hex()
    names = ("epoch", "incarnation_hash", "follow_end", "follow_sum", "start")
    sb["boundaries"] = [dict(zip(names, struct.unpack_from("<5Q", slot, 264 + 40 * i))) for i in range(sb["count"])]
    return sb


def newest(slots):
    valid = [(s["epoch"], s["sequence"], -i) for i, s in enumerate(slots) if isinstance(s, dict)]
    if "foreign" in slots:
        raise Refused("a superblock of another format version")
    if not valid and "damaged" not in slots:
        raise Refused("not a walsidecar log")
    for pair in (0, 2):
        if not any(isinstance(s, dict) for s in slots[pair:pair + 2]):
            raise Damage(0, 0, f"neither superblock slot {pair} nor {pair + 1} can be read")
    sb = slots[-max(valid)[2]]
    if any(isinstance(s, dict) and s["uuid"] != sb["uuid"] for s in slots):
        raise Damage(0, 0, "superblocks of two logs")
    if sb["incompat"]:
        raise Refused(f"incompatible features {sb['incompat']:#x}")
    return sb


class Log:
    def __init__(self, file, sb):
        self.file, self.sb, self.block, self.capacity = file, sb, sb["block"], sb["capacity"]

    def read(self, position, n):
        self.file.seek(RING + position % self.capacity)
        data = self.file.read(n)
        if len(data) < n:
            raise OSError(f"position {position}: short read")
        return data

    def any_header(self, position):
        """The header of any frame of this log at the place of position, or None."""
        raw = self.read(position, HEADER)
        names = ("magic version kind flags uuid_hash epoch incarnation_hash position length body records items prev_sum"
                 " durable checkpoint_start part parts frame_sum sum")
        h = dict(zip(names.split(), struct.unpack("<4sBBHQQQQIIIIQQQII24xQQ", raw)))
        if h["magic"] != b"WSF1" or h["version"] != 1 or h["sum"] != xxh64(raw[:120]) or h["uuid_hash"] != self.sb["uuid_hash"]:
            return None
        return h

    def header(self, position):
        """The header of a frame that belongs at position, or None."""
        h = self.any_header(position)
        if h is None or h["position"] != position or h["durable"] > position or h["kind"] not in KINDS:
            return None
        to_end, length, kind = self.capacity - position % self.capacity, h["length"], h["kind"]
        if position % self.block or length == 0 or length % self.block or length > to_end or h["body"] + HEADER > length:
            return None
        if kind == 2 and length != to_end or kind == 3 and length != self.block or kind in (1, 4) and length > self.sb["max_frame"]:
            return None
        if kind in (2, 3) and h["body"] or kind == 4 and (
                h["part"] >= h["parts"] or h["checkpoint_start"] > position or (h["checkpoint_start"] == position) != (h["part"] == 0)):
            return None
        void = [b for b in self.sb["boundaries"] if b["follow_end"] <= position < b["start"]]
        epochs = [b for b in self.sb["boundaries"] if b["start"] <= position]
        if void or not epochs:
            return None
        force, before = epochs[-1], epochs[-2]["epoch"] if len(epochs) > 1 else 0
        if force["incarnation_hash"] == 0:  # merged: any of its epochs
            if not before < h["epoch"] <= force["epoch"]:
                return None
        elif (h["epoch"], h["incarnation_hash"]) != (force["epoch"], force["incarnation_hash"]):
            return None
        if any(position < b["follow_end"] < position + length for b in self.sb["boundaries"]):
            return None
        return h

    def frame(self, position, prev_sum):
        """Header and body of the frame at position that follows prev_sum, or None."""
        h = self.header(position)
        if h is None or h["prev_sum"] != prev_sum:
            return None
        data = self.read(position, self.block if h["kind"] == 2 else h["length"])
        if xxh64(data[:112] + (b"" if h["kind"] == 2 else data[HEADER:])) != h["frame_sum"]:
            return None
        return h, data[HEADER:HEADER + h["body"]]

    def walk(self):
        """Yields the frames of the log, and returns its end; raises Damage."""
        sb, position, total, checkpoint = self.sb, self.sb["trim"], self.sb["trim_prev_sum"], False
        end, limit = position, position + self.capacity
        pending = [b for b in sb["boundaries"] if b["follow_end"] >= position]
        part, owner = (0, 0), (0, 0)
        while True:
            if pending and pending[0]["follow_end"] == end:
                if pending[0]["follow_sum"] != total:
                    raise Damage(end, end, "a later epoch follows another frame")
                position = pending.pop(0)["start"]
            found = self.frame(position, total) if position < limit else None
            if found and position + found[0]["length"] > limit:
                found = None
            if found and found[0]["epoch"] <= owner[0] and (found[0]["epoch"], found[0]["incarnation_hash"]) != owner:
                found = None
            if found is None:
                break
            h, body = found
            if position + h["length"] > h["durable"] + sb["window"]:
                raise Damage(position, position + h["length"], "beyond its window")
            yield h, body
            if h["kind"] == 4:
                part = (h["checkpoint_start"], h["part"] + 1) if part == (h["checkpoint_start"], h["part"]) or h["part"] == 0 else (0, 0)
                checkpoint = checkpoint or part == (h["checkpoint_start"], h["parts"])
            elif h["kind"] != 2:
                part = (0, 0)
            total, position, owner = h["sum"], position + h["length"], (h["epoch"], h["incarnation_hash"])
            end = position
        if pending:
            raise Damage(position, pending[-1]["follow_end"], "a later epoch found the log to reach further")
        if sb["durable"] > position:
            raise Damage(position, sb["durable"], "the superblock says that more was durable")
        proof = None
        for at in range(position, min(position + sb["window"] + sb["max_frame"] + self.block, limit), self.block):
            h = self.header(at)
            if h and h["durable"] > (proof.end if proof else position):
                proof = Damage(position, h["durable"], f"the frame at {at} says that more was durable")
            h = None if h else self.any_header(at)
            if proof is None and h and h["position"] == at and h["epoch"] > sb["epoch"] and h["prev_sum"] == total:
                proof = Damage(position, h["position"], "the log goes on behind what the superblocks know")
        if proof:
            raise proof
        if not checkpoint and sb["durable"] > sb["origin"]:
            raise Damage(sb["trim"], position, "no complete checkpoint")
        return end


def text(data, name="payload"):
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name + "_base64": base64.b64encode(data).decode()}


def headers(block):
    out, at = [], 2
    for _ in range(struct.unpack_from("<H", block)[0] if block else 0):
        key, value = struct.unpack_from("<HI", block, at)
        at += 6
        out.append({"key": block[at:at + key].decode(), **text(block[at + key:at + key + value], "value")})
        at += key + value
    return out


def items(body, base):
    at, before = 0, None  # the producer part of the batch right before
    while at < len(body):
        length, kind, flags, count = struct.unpack_from("<IBBH", body, at)
        part, position = body[at + 8:at + length], base + at
        item = {"item": ITEMS.get(kind, kind), "position": position}
        at += -(-length // 8) * 8
        if kind == 1:
            if flags > 7:
                raise Damage(position, position + length, f"unknown flags {flags} of a batch")
            if flags & 3 == 1:
                before, part = struct.unpack_from("<3Q", part), part[24:]
            elif flags & 3 == 2 and before and before[1] < MASK:
                before = (before[0], before[1] + 1, before[2])
            elif flags & 3:
                raise Damage(position, position + length, f"a batch with flags {flags}, behind {before}")
            else:
                before = None
            if before:
                item["producer"], item["sequence"], item["acked"] = before
            if flags & 4:  # lone: brought to the other form
                (low, timestamp), size = struct.unpack_from("<Iq", part, 12), len(part) - 24
                part = part[:8] + struct.pack("<QQqII", struct.unpack_from("<I", part, 8)[0], count << 32 | low, timestamp, 0, size) + part[24:]
                count = 1
            yield item | {"count": count}
            for _ in range(count):
                checksum, stream, offset, timestamp, head, size = struct.unpack_from("<QQQqII", part)
                if xxh64(part[8:40 + head + size]) != checksum:
                    raise Damage(position, position + length, f"record {offset} of stream {stream} is not what was appended")
                yield {"record": offset, "stream_id": stream, "position": position, "timestamp_ns": timestamp,
                       "headers": headers(part[40:40 + head]), **text(part[40 + head:40 + head + size])}
                part = part[-(-(40 + head + size) // 8) * 8:]
            continue
        before = None
        item["producer_id" if kind in (2, 8, 9, 10, 11) else "stream_id"] = struct.unpack_from("<Q", part)[0]
        if kind == 2:
            item["sequence"], item["acked"], item["actual"], item["code"], item["entry"] = struct.unpack_from("<3QHH", part, 8)
        elif kind == 3:
            item |= {"timestamp_ns": struct.unpack_from("<q", part, 8)[0], **text(part[16:], "name")}
        elif kind == 5:
            item["first"] = struct.unpack_from("<Q", part, 8)[0]
        elif kind in (7, 9):
            item |= text(part[8:], "token" if kind == 7 else "name")
        elif kind == 8:
            item["window"] = struct.unpack_from("<I", part, 8)[0]
        yield item


def main(path):
    def out(line):
        print(json.dumps(line, ensure_ascii=False))

    with open(path, "rb") as file:
        slots = [superblock(file.read(SLOT)) for _ in range(4)]
        for i, s in enumerate(slots):
            out({"slot": i, "state": "valid" if isinstance(s, dict) else s, **(s if isinstance(s, dict) else {})})
        log = Log(file, newest(slots))
        walk = log.walk()
        while True:
            try:
                h, body = next(walk)
            except StopIteration as stop:
                out({"end": stop.value})
                return 0
            out({"frame": KINDS[h["kind"]], **{k: v for k, v in h.items() if k not in ("magic", "kind", "version", "flags")}})
            if h["kind"] == 1:
                for line in items(body, h["position"] + HEADER):
                    out(line)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(sys.argv[1]))
    except Damage as d:
        print(json.dumps({"damage": d.reason, "from": d.start, "to": d.end}))
        sys.exit(11)
    except Refused as r:
        print(json.dumps({"refused": str(r)}))
        sys.exit(1)
