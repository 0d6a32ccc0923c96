package main

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	googleproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// floodSize is a little less than the largest message, so that the rest of an answer fits.
const floodSize = proto.MaxMessageSize - 4096

// flood is a message in which the repeated field of the number has as many entries as fit. Without a key they are empty.
func flood(number protowire.Number, key func(i int) []byte) raw {
	var message []byte
	for i := 0; len(message) < floodSize; i++ {
		message = protowire.AppendTag(message, number, protowire.BytesType)
		if key == nil {
			message = protowire.AppendBytes(message, nil)
			continue
		}
		message = protowire.AppendBytes(message, key(i))
	}
	return message
}

// distinctKey is an entry of a map with a key that no other has.
func distinctKey(i int) []byte {
	entry := protowire.AppendTag(nil, 1, protowire.BytesType)
	return protowire.AppendBytes(entry, binary.BigEndian.AppendUint32(nil, spread(i)))
}

// spread keeps every byte of the number below 128, so that a key is text.
func spread(i int) uint32 {
	return uint32(i&0x7f | i>>7&0x7f<<8 | i>>14&0x7f<<16 | i>>21&0x7f<<24)
}

// encodedMessage is an operation that runs, with a message of that many bytes.
func encodedMessage(size int) raw {
	encoded := protowire.AppendTag(nil, 3, protowire.VarintType)
	encoded = protowire.AppendVarint(encoded, uint64(proto.OperationState_OPERATION_STATE_RUNNING))
	encoded = protowire.AppendTag(encoded, 7, protowire.BytesType)
	return protowire.AppendBytes(encoded, bytes.Repeat([]byte("x"), size))
}

// succeeded is the beginning of an operation that succeeded.
func succeeded() raw {
	encoded := protowire.AppendTag(nil, 3, protowire.VarintType)
	return protowire.AppendVarint(encoded, uint64(proto.OperationState_OPERATION_STATE_SUCCEEDED))
}

// allowed is how large the controller lets the answer of each method be, in bytes.
var allowed = map[string]int{
	"GetInfo": proto.MaxInfoSize, "GetOperation": proto.MaxResultSize, "GetPlan": proto.MaxPlanPartSize,
	"StartOperation": proto.MaxOperationSize, "WatchOperation": proto.MaxOperationSize, "CancelOperation": proto.MaxOperationSize,
	"PushSource": proto.MaxEmptySize, "FetchSource": proto.MaxEmptySize, "PushPlan": proto.MaxEmptySize, "ForgetOperation": proto.MaxEmptySize,
}

// unknownField is the number of a field that no message has, and fieldHeader is what there is of it before its content, in bytes at most.
const (
	unknownField = 999
	fieldHeader  = 6
)

// padded is the answer of the method with a field that no message has, as large as it may be.
func padded(answer any, method string) (raw, error) {
	encoded, err := googleproto.Marshal(answer.(googleproto.Message))
	if err != nil {
		return nil, err
	}
	size := allowed[method] - len(encoded) - fieldHeader
	if size < 0 {
		return nil, fmt.Errorf("the answer of %s is larger than it may be", method)
	}
	encoded = protowire.AppendTag(encoded, unknownField, protowire.BytesType)
	return protowire.AppendBytes(encoded, bytes.Repeat([]byte("x"), size)), nil
}
