package server

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestControllerAcceptsAsManyOutputsAsThereMayBe(t *testing.T) {
	a := startAgent(t, t.TempDir())
	many := map[string]*agentpb.Output{}
	for i := range agentpb.MaxOutputs {
		many[fmt.Sprintf("output-%05d", i)] = &agentpb.Output{Value: []byte(`"` + strings.Repeat("v", 400) + `"`), Secret: true}
	}
	a.start("a")
	a.finish("a", &agentpb.Operation{State: succeeded, Outputs: many})
	a.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("Outputs", HaveLen(agentpb.MaxOutputs)))
}

// Operations that were not forgotten and have messages of the maximum size must not prevent the controller from reading GetInfo.
func TestControllerAcceptsTheLargestInfo(t *testing.T) {
	a := startAgent(t, t.TempDir())
	changes := map[string]int64{}
	for i := range agentpb.MaxChangeKinds {
		changes[fmt.Sprintf("%0*d", agentpb.MaxChangeKind, i)] = 1
	}
	long := func(size int) string { return strings.Repeat("ä", size/2) }
	warnings := make([]string, agentpb.MaxWarnings)
	for i := range warnings {
		warnings[i] = long(agentpb.MaxWarning)
	}
	for i := range maxFinishedOperations {
		id := fmt.Sprintf("operation-%d", i)
		a.start(id)
		final := a.finish(id, &agentpb.Operation{
			State: agentpb.OperationState_OPERATION_STATE_FAILED, Message: long(agentpb.MaxText), Permalink: long(agentpb.MaxPermalink), ResourceChanges: changes,
			Project:    &agentpb.ProjectSource{Name: long(agentpb.MaxName), Runtime: long(agentpb.MaxName)},
			LockHolder: &agentpb.LockHolder{User: long(agentpb.MaxName), Host: long(agentpb.MaxName)}, Warnings: warnings,
		})
		a.Expect(gproto.Size(final)).To(BeNumerically("<", agentpb.MaxOperationSize))
	}
	info, err := a.GetInfo(t.Context())
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(info.GetOperations()).To(HaveLen(maxFinishedOperations))
	a.Expect(gproto.Size(info)).To(BeNumerically("<", agentpb.MaxInfoSize))
}

// A request is authenticated only after it was decoded.
func TestRequestOfEmptyMessagesIsRefusedBeforeItIsDecoded(t *testing.T) {
	a := startAgent(t, t.TempDir())
	request := &agentpb.StartOperationRequest{Id: "a"}
	for range agentpb.MaxRequestFields {
		request.Config = append(request.Config, &agentpb.ConfigItem{})
	}
	a.Expect(a.StartOperation(t.Context(), request)).Error().To(MatchError(ContainSubstring("too many fields")))
}
