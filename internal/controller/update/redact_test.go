package update

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// secretConfig returns a change of a Workspace: the configuration of its stack has the values of these Secrets, as text or as JSON.
func secretConfig(json bool, secrets ...string) func(*autov1alpha1.Workspace) {
	return func(workspace *autov1alpha1.Workspace) {
		if workspace.Spec.Stacks == nil {
			workspace.Spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev"}}
		}
		config := &workspace.Spec.Stacks[0].Config
		for _, name := range secrets {
			*config = append(*config, autov1alpha1.ConfigItem{Key: name, ValueFrom: &autov1alpha1.ConfigValueFrom{
				SecretKeyRef: &autov1alpha1.KeyReference{Name: name, Key: "key"}, JSON: json,
			}})
		}
	}
}

func TestMessageOfAnAgentThatRefusesIsShownWithoutSecrets(t *testing.T) {
	s := newFixture(t)
	const variable, text, leaf = "canary \"of\" the environment", "canary-of-the-configuration\nsecond-line-of-it", "canary-in-a-document"
	s.newSecret("variable", map[string]string{"key": variable})
	s.newSecret("text", map[string]string{"key": text})
	s.newSecret("document", map[string]string{"key": `{"pass\u0077ord": ["` + leaf + `"]}`})
	s.newReadyWorkspace("app", secretConfig(false, "text"), secretConfig(true, "document"), func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: secretKey("variable", "key")}}
	})
	s.agents.answerWith(func(method string, _ any) error {
		if method != "StartOperation" {
			return nil
		}
		return status.Errorf(codes.InvalidArgument, "the region is wrong: %s %s %q %s, line %s, basic %s", variable, text, variable, leaf,
			"second-line-of-it", base64.StdEncoding.EncodeToString([]byte("user:"+variable)))
	})
	s.startController()
	update := s.newUpdate("up")
	done := s.finished(update)
	const mask = redact.Mask
	s.Expect(done).To(haveFailed(autov1alpha1.ConfigInvalidReason, "the region is wrong: "+mask+" "+mask+" \""+mask+"\" "+mask+", line "+mask+", basic dXNlcj"))
	s.Eventually(s.events(update)).Should(ConsistOf(ContainSubstring("the region is wrong: " + mask)))
	everything := fmt.Sprintf("%s %+v", s.log.String(), done)
	for _, secret := range []string{"canary", "second-line", strconv.Quote(variable), "Y2FuYXJ5"} {
		s.Expect(everything).NotTo(ContainSubstring(secret))
	}
}

// maxRefusedMemory is how many bytes the controller and the agent together may allocate for one operation with the largest values: to read
// them from the API server, to send them, and to receive them.
const maxRefusedMemory = 30 * maxValues

// TestRefusedOperationsWithTheLargestSecretsTakeLittleMemory is an attack: the agent refuses the operations, because one of their options is
// not valid, and what it says must have no secret.
func TestRefusedOperationsWithTheLargestSecretsTakeLittleMemory(t *testing.T) {
	suite.WithoutRaceDetector(t)
	s := newFixture(t)
	var names []string
	for i := range 8 {
		name, source := fmt.Sprintf("large-%d", i), rand.New(rand.NewPCG(1, uint64(i)))
		value := make([]byte, 1000<<10)
		for at := range value {
			value[at] = byte('!' + source.IntN('~'-'!'))
		}
		names = append(names, name)
		s.newSecret(name, map[string]string{"key": string(value)})
	}
	s.newReadyWorkspace("app", secretConfig(false, names...))
	var updates []*autov1alpha1.Update
	for i := range 4 {
		updates = append(updates, s.newUpdate(fmt.Sprint("up-", i), func(update *autov1alpha1.Update) { update.Spec.Parallel = new(int32(-1)) }))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.startController()
	for _, update := range updates {
		s.Expect(s.finished(update)).To(haveFailed(autov1alpha1.ConfigInvalidReason, "the agent refuses the request: "+redact.Withheld))
	}
	runtime.ReadMemStats(&after)
	allocated := (after.TotalAlloc - before.TotalAlloc) / uint64(len(updates))
	t.Logf("one operation allocated %d MiB", allocated>>20)
	s.Expect(allocated).To(BeNumerically("<", maxRefusedMemory))
	s.Expect(s.agents.script.requests()).To(BeEmpty())
}

// TestSecretsOfARequestAreNotCopied counts what the search for the largest secrets in the text of an agent allocates.
func TestSecretsOfARequestAreNotCopied(t *testing.T) {
	g := NewWithT(t)
	large := make([]byte, 1000<<10)
	for i := range large {
		large[i] = byte('!' + i*i%90)
	}
	request := &agentpb.StartOperationRequest{}
	for range 4 {
		request.Config = append(request.Config,
			&agentpb.ConfigItem{Secret: true, Value: &agentpb.ConfigItem_Text{Text: string(large)}},
			&agentpb.ConfigItem{Secret: true, Value: &agentpb.ConfigItem_Json{Json: strconv.Quote(string(large))}})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	redact.Brief("refused", secretsOf(request))
	runtime.ReadMemStats(&after)
	g.Expect(after.TotalAlloc - before.TotalAlloc).To(BeNumerically("<", 5<<20))
}
