package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/operation"
)

// planned returns the request for an up that carries out the plan with the content.
func planned(id, content string) *agentpb.StartOperationRequest {
	request := request(id)
	request.Kind, request.Source = agentpb.OperationKind_OPERATION_KIND_PLANNED_UP, &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{}}
	request.Plan = &agentpb.PlanRequest{
		Key: bytes.Repeat([]byte("k"), agentpb.PlanKeySize), FileDigest: sha256Of(content),
		Expected: &agentpb.PlanDigests{Inputs: "i", Changes: "c", State: "s"},
	}
	return request
}

func sha256Of(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestPlanIsPushedForOneOperation(t *testing.T) {
	a := startAgent(t, t.TempDir())
	content := strings.Repeat("plan", 100_000)
	a.Expect(os.MkdirAll(filepath.Join(a.dir, "workspace"), 0o700)).To(Succeed())
	a.Expect(os.WriteFile(filepath.Join(a.dir, "workspace", "Pulumi.yaml"), []byte("name: demo\nruntime: yaml\n"), 0o600)).To(Succeed())
	request := planned("a", content)
	_, err := a.StartOperation(t.Context(), request)
	a.Expect(err).To(MatchError(client.ErrPlanMissing))
	push := func(digest string, size int, content string) error {
		return a.PushPlan(t.Context(), digest, int64(size), strings.NewReader(content))
	}
	a.Expect(push(sha256Of("other"), len(content), content)).To(MatchError(client.ErrDigestMismatch))
	a.Expect(push(sha256Of(content), len(content)-1, content)).To(MatchError(client.ErrInvalid))
	a.Expect(push(sha256Of(content), agentpb.MaxPlanSize+1, content)).To(MatchError(client.ErrTooLarge))
	_, err = a.StartOperation(t.Context(), request)
	a.Expect(err).To(MatchError(client.ErrPlanMissing))

	a.Expect(push(sha256Of(content), len(content), content)).To(Succeed())
	a.Expect(a.StartOperation(t.Context(), request)).NotTo(BeNil())
	var started call
	a.Eventually(a.runner.calls).WithTimeout(patience).Should(Receive(&started))
	taken, err := os.ReadFile(started.paths.Plan)
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(string(taken)).To(Equal(content))
	a.finish("a", &agentpb.Operation{State: succeeded})
	a.Expect(started.paths.Plan).NotTo(BeAnExistingFile())
	_, err = a.StartOperation(t.Context(), planned("b", content))
	a.Expect(err).To(MatchError(client.ErrPlanMissing), "it was for one operation")
}

func TestPlanThatWasSavedIsGottenUntilItIsForgotten(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.start("a")
	results := filepath.Join(a.dir, recordsName, "a")
	file, text := bytes.Repeat([]byte("f"), 3*planChunk+5), []byte("text")
	a.Expect(os.WriteFile(filepath.Join(results, operation.PlanFile), file, 0o600)).To(Succeed())
	a.Expect(os.WriteFile(filepath.Join(results, operation.PlanText), text, 0o600)).To(Succeed())
	var gotFile, gotText bytes.Buffer
	a.Expect(a.GetPlan(t.Context(), "a", &gotFile, &gotText)).To(MatchError(client.ErrNotFound), "it is not done")
	a.finish("a", &agentpb.Operation{State: succeeded})
	a.Expect(a.GetPlan(t.Context(), "a", &gotFile, &gotText)).To(Succeed())
	a.Expect(gotFile.Bytes()).To(Equal(file))
	a.Expect(gotText.Bytes()).To(Equal(text))

	a.Expect(os.Remove(filepath.Join(results, operation.PlanFile))).To(Succeed())
	gotFile.Reset()
	gotText.Reset()
	a.Expect(a.GetPlan(t.Context(), "a", &gotFile, &gotText)).To(Succeed())
	a.Expect(gotFile.Len()).To(BeZero())
	a.Expect(gotText.Bytes()).To(Equal(text))
	a.Expect(os.WriteFile(filepath.Join(results, operation.PlanText), make([]byte, agentpb.MaxPlanText+1), 0o600)).To(Succeed())
	a.Expect(a.GetPlan(t.Context(), "a", &gotFile, &gotText)).To(MatchError(client.ErrNotFound), "programs can write there, too")
	a.Expect(a.ForgetOperation(t.Context(), "a")).To(Succeed())
	a.Expect(a.GetPlan(t.Context(), "a", &gotFile, &gotText)).To(MatchError(client.ErrNotFound))
}
