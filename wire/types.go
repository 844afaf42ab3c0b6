package wire

import "strconv"

// Type says what a message is. Types below 64 are sent by the client, those from
// 64 on by the sidecar.
type Type uint16

// The messages of the client. Those marked "loop" are decided by the commit
// loop, in the order in which they were sent; the session answers the others.
const (
	TypeHello          Type = 1
	TypePing           Type = 2
	TypeStatus         Type = 3
	TypeShmOpen        Type = 4
	TypePad            Type = 5  // in shared memory alone
	TypeAppend         Type = 8  // loop
	TypeStreamOpen     Type = 16 // loop
	TypeStreamSeal     Type = 17 // loop
	TypeStreamDelete   Type = 18 // loop
	TypeStreamToken    Type = 19 // loop
	TypeStreamTrim     Type = 20 // loop
	TypeStreamStat     Type = 21 // loop
	TypeStreamList     Type = 22 // loop
	TypeProducerOpen   Type = 24 // loop
	TypeProducerGet    Type = 25 // loop
	TypeProducerRemove Type = 26 // loop
	TypeRead           Type = 32
	TypeReplay         Type = 33
	TypeCredit         Type = 34 // carries the id of its read and uses up none
	TypeCancel         Type = 35 // carries the id of its read and uses up none
)

// The messages of the sidecar.
const (
	TypeWelcome       Type = 64
	TypeGoodbye       Type = 65
	TypePong          Type = 66
	TypeStatusJSON    Type = 67
	TypeError         Type = 68
	TypeShmInfo       Type = 69
	TypeAppendAck     Type = 72
	TypeAppendResult  Type = 73
	TypeStreamInfo    Type = 80
	TypeStreamPage    Type = 81
	TypeTrimmed       Type = 82
	TypeProducerInfo  Type = 88
	TypeRecords       Type = 96
	TypeReplayBatches Type = 97
	TypeGap           Type = 98
	TypeCaughtUp      Type = 99
	TypeHeartbeat     Type = 100
	TypeEnd           Type = 101
)

// ForLoop reports whether the commit loop decides messages of this type.
func (t Type) ForLoop() bool { return t >= TypeAppend && t <= TypeProducerRemove && t.known() }

// UsesRequestID reports whether a message of this type uses up the next request
// id of its connection: all of a client do, known or not, but for three.
func (t Type) UsesRequestID() bool {
	return t < TypeWelcome && t != TypeHello && t != TypeCredit && t != TypeCancel
}

func (t Type) known() bool { return int(t) < len(typeNames) && typeNames[t] != "" }

// String returns the snake_case name of the type, or its number.
func (t Type) String() string {
	if t.known() {
		return typeNames[t]
	}
	return "type_" + strconv.Itoa(int(t))
}

var typeNames = [...]string{
	TypeHello:          "hello",
	TypePing:           "ping",
	TypeStatus:         "status",
	TypeShmOpen:        "shm_open",
	TypePad:            "pad",
	TypeAppend:         "append",
	TypeStreamOpen:     "stream_open",
	TypeStreamSeal:     "stream_seal",
	TypeStreamDelete:   "stream_delete",
	TypeStreamToken:    "stream_token",
	TypeStreamTrim:     "stream_trim",
	TypeStreamStat:     "stream_stat",
	TypeStreamList:     "stream_list",
	TypeProducerOpen:   "producer_open",
	TypeProducerGet:    "producer_get",
	TypeProducerRemove: "producer_remove",
	TypeRead:           "read",
	TypeReplay:         "replay",
	TypeCredit:         "credit",
	TypeCancel:         "cancel",
	TypeWelcome:        "welcome",
	TypeGoodbye:        "goodbye",
	TypePong:           "pong",
	TypeStatusJSON:     "status_json",
	TypeError:          "error",
	TypeShmInfo:        "shm_info",
	TypeAppendAck:      "append_ack",
	TypeAppendResult:   "append_result",
	TypeStreamInfo:     "stream_info",
	TypeStreamPage:     "stream_page",
	TypeTrimmed:        "trimmed",
	TypeProducerInfo:   "producer_info",
	TypeRecords:        "records",
	TypeReplayBatches:  "replay_batches",
	TypeGap:            "gap",
	TypeCaughtUp:       "caught_up",
	TypeHeartbeat:      "heartbeat",
	TypeEnd:            "end",
}
