package server

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

func TestControllerAcceptsAsManyOutputsAsThereMayBe(t *testing.T) {
	a := startAgent(t, t.TempDir())
	many := map[string]*proto.Output{}
	for i := range proto.MaxOutputs {
		many[fmt.Sprintf("output-%05d", i)] = &proto.Output{Value: []byte(`"` + strings.Repeat("v", 400) + `"`), Secret: true}
	}
	a.start("a")
	a.finish("a", &proto.Operation{State: succeeded, Outputs: many})
	a.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("Outputs", HaveLen(proto.MaxOutputs)))
}

// Operations that were not forgotten and have messages of the maximum size must not prevent the controller from reading GetInfo.
func TestControllerAcceptsTheLargestInfo(t *testing.T) {
	a := startAgent(t, t.TempDir())
	changes := map[string]int64{}
	for i := range proto.MaxChangeKinds {
		changes[fmt.Sprintf("%0*d", proto.MaxChangeKind, i)] = 1
	}
	long := func(size int) string { return strings.Repeat("ä", size/2) }
	warnings := make([]string, proto.MaxWarnings)
	for i := range warnings {
		warnings[i] = long(proto.MaxWarning)
	}
	for i := range maxFinishedOperations {
		id := fmt.Sprintf("operation-%d", i)
		a.start(id)
		final := a.finish(id, &proto.Operation{
			State: proto.OperationState_OPERATION_STATE_FAILED, Message: long(proto.MaxText), Permalink: long(proto.MaxPermalink), ResourceChanges: changes,
			Project:    &proto.ProjectSource{Name: long(proto.MaxName), Runtime: long(proto.MaxName)},
			LockHolder: &proto.LockHolder{User: long(proto.MaxName), Host: long(proto.MaxName)}, Warnings: warnings,
		})
		a.Expect(gproto.Size(final)).To(BeNumerically("<", proto.MaxOperationSize))
	}
	info, err := a.GetInfo(t.Context())
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(info.GetOperations()).To(HaveLen(maxFinishedOperations))
	a.Expect(gproto.Size(info)).To(BeNumerically("<", proto.MaxInfoSize))
}

// A request is authenticated only after it was decoded.
func TestRequestOfEmptyMessagesIsRefusedBeforeItIsDecoded(t *testing.T) {
	a := startAgent(t, t.TempDir())
	request := &proto.StartOperationRequest{Id: "a"}
	for range proto.MaxRequestFields {
		request.Config = append(request.Config, &proto.ConfigItem{})
	}
	a.Expect(a.StartOperation(t.Context(), request)).Error().To(MatchError(ContainSubstring("too many fields")))
}
