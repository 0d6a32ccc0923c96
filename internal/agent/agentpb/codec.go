package agentpb

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	gproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	// The codec that this one extends; it is registered when it is imported.
	protocodec "google.golang.org/grpc/encoding/proto"
)

// maxNesting is how deep messages may be nested. The messages of the protocol are nested at most 4 deep.
const maxNesting = 8

// errGroup is the error for a group, the old way to nest messages, which has no length prefix and which proto3 never uses.
var errGroup = errors.New("it has a group")

// Codec decodes protobuf messages of a peer that is not trusted. An empty message takes two bytes on the wire and a hundred times as much
// in memory, so a limit on the size of a message is not enough: the fields are counted on the wire before anything is decoded. Unknown
// fields are counted and discarded. Text that is not UTF-8 is refused.
type Codec struct {
	// MaxFields is how many fields a message may have, including those of all nested messages.
	MaxFields int
	// Refused, if not nil, is called with the reason when a message is not decoded.
	Refused func(error)
}

// Name implements encoding.CodecV2. It is part of the protocol.
func (c *Codec) Name() string { return protocodec.Name }

// Marshal implements encoding.CodecV2.
func (c *Codec) Marshal(message any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2(protocodec.Name).Marshal(message)
}

// Unmarshal implements encoding.CodecV2.
func (c *Codec) Unmarshal(data mem.BufferSlice, into any) error {
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	err := c.decode(buffer.ReadOnlyData(), into)
	if err != nil && c.Refused != nil {
		c.Refused(err)
	}
	return err
}

func (c *Codec) decode(data []byte, into any) error {
	message, ok := into.(gproto.Message)
	if !ok {
		return fmt.Errorf("decode a message: %T is not one", into)
	}
	fields := counter{left: c.MaxFields}
	if err := fields.count(data, message.ProtoReflect().Descriptor(), maxNesting); err != nil {
		return fmt.Errorf("decode a message of %d bytes: %w", len(data), err)
	}
	if err := (gproto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, message); err != nil {
		return fmt.Errorf("decode a message of %d bytes: %w", len(data), err)
	}
	return nil
}

// counter counts the fields of a message on the wire, up to a limit.
type counter struct {
	left int
}

// take counts n fields.
func (c *counter) take(n int) error {
	if c.left -= n; c.left < 0 {
		return errors.New("it has too many fields")
	}
	return nil
}

// count counts the fields of the message and of the messages in it. It allocates nothing and reads every byte once per level.
func (c *counter) count(data []byte, message protoreflect.MessageDescriptor, nesting int) error {
	if nesting == 0 {
		return errors.New("its messages are nested too deeply")
	}
	for len(data) > 0 {
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if kind == protowire.StartGroupType || kind == protowire.EndGroupType {
			return errGroup
		}
		data = data[size:]
		if size = protowire.ConsumeFieldValue(number, kind, data); size < 0 {
			return protowire.ParseError(size)
		}
		if err := c.take(1); err != nil {
			return err
		}
		if kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(data)
			if err := c.countContent(content, message.Fields().ByNumber(number), nesting); err != nil {
				return err
			}
		}
		data = data[size:]
	}
	return nil
}

// countContent counts the fields in a field with a length prefix: a nested message, or a list of numbers. field is nil if the protocol has
// no such field.
func (c *counter) countContent(content []byte, field protoreflect.FieldDescriptor, nesting int) error {
	switch {
	case field == nil:
		return nil
	case field.Message() != nil:
		return c.count(content, field.Message(), nesting-1)
	case field.IsList() && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind:
		return c.take(len(content))
	}
	return nil
}
