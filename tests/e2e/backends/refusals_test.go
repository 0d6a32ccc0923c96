package backends_test

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/postgres"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// The services of clouds are not available here. The test uses the checks of the pulumi CLI itself, and servers that refuse every request.
func TestStackSaysWhatABackendMisses(t *testing.T) {
	t.Parallel()
	refusing := refusingServer(t, http.StatusUnauthorized, nil)
	azure := refusingServer(t, http.StatusForbidden, http.Header{"X-Ms-Error-Code": {"AuthenticationFailed"}})
	for name, test := range map[string]struct {
		url  string
		env  variables
		says string
	}{
		"cloud-without-token": {
			url: "http://" + refusing, says: "PULUMI_ACCESS_TOKEN must be set",
		},
		"cloud-with-wrong-token": {
			url: "http://" + refusing, env: variables{"PULUMI_ACCESS_TOKEN": credentialCanary}, says: "No credentials provided or are invalid",
		},
		"s3-without-credentials": {
			url: "s3://state?region=us-east-1&use_path_style=true&endpoint=http://" + store.Address,
			env: variables{"AWS_EC2_METADATA_DISABLED": "true"}, says: "failed to refresh cached credentials",
		},
		"azblob-without-account": {
			url: "azblob://state", says: "AccountName is required",
		},
		"azblob-with-malformed-key": {
			url: "azblob://state", env: variables{"AZURE_STORAGE_ACCOUNT": "acme", "AZURE_STORAGE_KEY": credentialCanary}, says: "decode account key",
		},
		"azblob-with-wrong-key": {
			url: "azblob://state?protocol=http&localemu=true&domain=" + azure,
			env: variables{"AZURE_STORAGE_ACCOUNT": "acme", "AZURE_STORAGE_KEY": "Y3JlZGVudGlhbC1jYW5hcnktYjAxZg=="}, says: "AuthenticationFailed",
		},
		"gs-with-malformed-credentials": {
			url: "gs://state", env: variables{"GOOGLE_CREDENTIALS": `{"private_key": "` + credentialCanary}, says: "unable to parse credentials",
		},
		"gs-with-wrong-key": {
			url: "gs://state", says: "private key should be a PEM", env: variables{"GOOGLE_CREDENTIALS": `{"type": "service_account", ` +
				`"client_email": "acme@example.com", "token_uri": "http://` + refusing + `", "private_key": "` + credentialCanary + `"}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deploy(t, name, test.url, test.env).awaitFailure(test.says, autov1alpha1.InvalidAccessTokenReason)
		})
	}
}

// The response is a real 401 of a server that stands in for Pulumi Cloud. The operator shows such a refusal on the Workspace.
func TestBackendThatAnswersUnauthorizedIsShownOnTheStackAndItsWorkspace(t *testing.T) {
	t.Parallel()
	refusing := refusingServer(t, http.StatusUnauthorized, nil)
	a := deploy(t, "cloud-unauthorized", "http://"+refusing, variables{"PULUMI_ACCESS_TOKEN": credentialCanary})
	stack := a.awaitFailure("No credentials provided or are invalid", autov1alpha1.InvalidAccessTokenReason)
	a.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.InvalidAccessTokenReason))
	for _, condition := range []string{meta.ReadyCondition, meta.StalledCondition} {
		a.Eventually(func() string {
			return conditions.GetReason(a.Workspace(), condition)
		}).Should(Equal(autov1alpha1.UnauthenticatedReason), condition)
	}
}

func TestUpdateThatPulumiCloudRefusesBesideAnotherIsAConflict(t *testing.T) {
	t.Parallel()
	a := deploy(t, "cloud-busy", busyCloud(t), variables{"PULUMI_ACCESS_TOKEN": credentialCanary}, func(s *pulumiv1.Stack) {
		s.Spec.Stack = "acme/cloud-busy/dev"
	})
	stack := a.awaitFailure("Another update is currently in progress", autov1alpha1.UpdateConflictReason)
	a.Expect(statuscheck.NotReady(pulumiv1.UpdateConflictReason)(stack)).To(BeTrue())
	a.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	a.Expect(stack.Status.LastUpdate.Conflicts).To(BeEquivalentTo(1))
}

// A user who gives the whole URL as a secret may have put the password into it.
func TestPasswordInBackendURLFromSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	needDatabase(t)
	login := func(password string) variables {
		return variables{"PULUMI_BACKEND_URL": "postgres://" + postgres.User + ":" + password + "@" + database.Address + "/" + postgres.Database +
			"?sslmode=disable&table=from_url"}
	}
	a := deploy(t, "url-secret", "", login(credentialCanary))
	a.Await(failing("password authentication failed"))
	// The CLI takes a URL that it cannot parse for the address of a Pulumi Cloud.
	a.login(login("%zz" + credentialCanary))
	a.Await(failing("PULUMI_ACCESS_TOKEN must be set"))
	a.login(login(database.Password))
	a.Await(systemtest.Showing("1"))
	a.remove()
}
