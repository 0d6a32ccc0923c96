package agentpb_test

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	gproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func decode(data []byte, fields int, into any) error {
	codec := &agentpb.Codec{MaxFields: fields}
	return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, into)
}

func TestCodecCountsTheFieldsOfAllMessages(t *testing.T) {
	g := NewWithT(t)
	operation := &agentpb.Operation{
		Id: "a", StartTime: &timestamppb.Timestamp{Seconds: 1, Nanos: 1}, Project: &agentpb.ProjectSource{Name: "p"},
		ResourceChanges: map[string]int64{"create": 1},
		Outputs:         map[string]*agentpb.Output{"o": {Value: []byte("1"), Secret: true}},
	}
	encoded, err := gproto.Marshal(operation)
	g.Expect(err).NotTo(HaveOccurred())
	decoded := &agentpb.Operation{}
	g.Expect(decode(encoded, 14, decoded)).To(Succeed())
	g.Expect(gproto.Equal(decoded, operation)).To(BeTrue())
	g.Expect(decode(encoded, 13, decoded)).To(MatchError(ContainSubstring("too many fields")))
	g.Expect(decode(encoded, 14, "text")).To(MatchError(ContainSubstring("string is not one")))
}

func TestCodecCountsPackedNumbersAndRefusesDepthAndGroups(t *testing.T) {
	g := NewWithT(t)
	deep := structpb.NewNullValue()
	for range 20 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	encoded, err := gproto.Marshal(deep)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(decode(encoded, 1000, &structpb.Value{})).To(MatchError(ContainSubstring("nested too deeply")))
	group := protowire.AppendTag(protowire.AppendTag(nil, 999, protowire.StartGroupType), 999, protowire.EndGroupType)
	g.Expect(decode(group, 1000, &agentpb.Operation{})).To(MatchError(ContainSubstring("group")))
	for _, broken := range [][]byte{{0x22}, {0x22, 0x05, 0x00}, {0x00}, {0xff}, {0x3a, 0x01, 0xff}} {
		g.Expect(decode(broken, 1000, &agentpb.Operation{})).NotTo(Succeed())
	}
}

func TestCodecThrowsAwayWhatItDoesNotKnow(t *testing.T) {
	g := NewWithT(t)
	unknown := protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "from a newer agent")
	decoded := &agentpb.Operation{}
	g.Expect(decode(unknown, 10, decoded)).To(Succeed())
	g.Expect(decoded.ProtoReflect().GetUnknown()).To(BeEmpty())
}

// FuzzCodec checks that a decoded message has no more fields than were counted, and that every accepted message is decoded as protobuf
// decodes it.
func FuzzCodec(f *testing.F) {
	encoded, _ := gproto.Marshal(&agentpb.Info{Operations: []*agentpb.Operation{{Id: "a", Outputs: map[string]*agentpb.Output{"o": {Value: []byte("1")}}}}})
	f.Add(encoded, uint16(10))
	f.Add(bytes.Repeat([]byte{0x22, 0x00}, 100), uint16(50))
	f.Add([]byte{0x22, 0x02, 0x52, 0x00}, uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, limit uint16) {
		fields := int(limit)
		decoded, plain := &agentpb.Info{}, &agentpb.Info{}
		err := decode(data, fields, decoded)
		if err == nil && populated(decoded.ProtoReflect()) > fields {
			t.Fatalf("%d fields of at most %d", populated(decoded.ProtoReflect()), fields)
		}
		expected := gproto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, plain)
		if err == nil && (expected != nil || !gproto.Equal(decoded, plain)) {
			t.Fatalf("decoded %v, protobuf %v %v", decoded, plain, expected)
		}
		if err != nil && expected == nil && fields > len(data) && !bytes.Contains([]byte(err.Error()), []byte("group")) {
			t.Fatalf("refused without a reason: %v", err)
		}
	})
}

// populated counts the contents of a message: nested messages, elements and entries.
func populated(message protoreflect.Message) int {
	count := 0
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			value.Map().Range(func(_ protoreflect.MapKey, value protoreflect.Value) bool {
				count++
				if field.MapValue().Message() != nil {
					count += populated(value.Message())
				}
				return true
			})
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				count += 1 + populated(value.List().Get(i).Message())
			}
		case field.IsList():
			count += value.List().Len()
		case field.Message() != nil:
			count += 1 + populated(value.Message())
		default:
			count++
		}
		return true
	})
	return count
}
