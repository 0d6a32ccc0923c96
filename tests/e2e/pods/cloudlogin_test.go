package pods_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cloud"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// clusterKey returns the key with which the API server signs the tokens of ServiceAccounts. A user uploads it to Pulumi Cloud, if Pulumi
// Cloud cannot fetch it.
func clusterKey(t *testing.T, g *WithT) any {
	t.Helper()
	published, err := kubectl(t.Context(), "get", "--raw", "/openid/v1/jwks")
	g.Expect(err).NotTo(HaveOccurred())
	var keys jose.JSONWebKeySet
	g.Expect(json.Unmarshal([]byte(published), &keys)).To(Succeed())
	g.Expect(keys.Keys).NotTo(BeEmpty())
	return keys.Keys[0].Key
}

func TestPodLogsInToPulumiCloudWithTheTokenOfItsServiceAccount(t *testing.T) {
	suite.Long(t, "the agent's tests have a login with each kind of failure; here the token is real")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "cloud-login"
	removeNamespaceAtEnd(t, g, name)
	app, stack, err := system.Provide(ctx, name, program("1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Client.Create(ctx, &corev1.ServiceAccount{Namespace: name, Name: "network"})).To(Succeed())
	service := cloud.New("")
	trust := cloud.Trust{Organization: cloud.User, Subject: "system:serviceaccount:" + name + ":network", Scope: "team:network", Key: clusterKey(t, g)}
	service.Trust(trust)
	stack.Spec.Backend, stack.Spec.EnvRefs = serveCloud(t, g, service), nil
	stack.Spec.ServiceAccountName = "network"
	stack.Spec.PulumiCloud = &autov1alpha1.PulumiCloud{OIDC: autov1alpha1.PulumiCloudOIDC{
		Organization: cloud.User, Team: "network", Expiration: &metav1.Duration{Duration: 2 * time.Hour},
	}}
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	waitReady(ctx, g, app)
	request(ctx, g, app.Key(), "again")
	exchanges := service.Exchanges()
	g.Expect(exchanges).To(HaveLen(2), "one for each operation")
	g.Expect(exchanges[0]).To(And(HaveField("Type", "team"), HaveField("Expiration", 2*time.Hour)))
	files, err := runInPod(ctx, name, name, "find / -name credentials.json -not -path '/proc/*' 2>/dev/null; ls /var/run/secrets/pulumi-cloud")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).To(Equal("token\n"), "the login does not outlive its operation")

	trust.Subject = "system:serviceaccount:" + name + ":another"
	service.Trust(trust)
	change(ctx, g, app.Key(), func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, "refused")
	})
	refused := awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.LastUpdate.ReconcileRequest).To(Equal("refused"))
		g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
	})
	g.Expect(refused.Status.LastUpdate.Reason).To(Equal(autov1alpha1.InvalidAccessTokenReason))
	g.Expect(refused.Status.LastUpdate.Message).To(And(ContainSubstring("the audience urn:pulumi:org:acme and the subject system:serviceaccount:cloud-login:network"),
		ContainSubstring("an OIDC issuer http")))
	trust.Subject = "system:serviceaccount:" + name + ":network"
	service.Trust(trust)
	request(ctx, g, app.Key(), "trusted again")
}
