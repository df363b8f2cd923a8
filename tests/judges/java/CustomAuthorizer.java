import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.apache.kafka.common.Endpoint;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.server.authorizer.AclCreateResult;
import org.apache.kafka.server.authorizer.AclDeleteResult;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;
import org.apache.kafka.server.authorizer.Authorizer;
import org.apache.kafka.server.authorizer.AuthorizerServerInfo;

/** An authorizer without ACLs; `authorizer_beside_kafka.py` has the same in Python. */
public class CustomAuthorizer implements Authorizer {
    private String home;

    public void configure(Map<String, ?> configs) {
        home = "" + configs.get("authorizer.home");
    }

    public Map<Endpoint, ? extends CompletionStage<Void>> start(AuthorizerServerInfo info) {
        Map<Endpoint, CompletionStage<Void>> started = new HashMap<>();
        info.endpoints().forEach(each -> started.put(each, CompletableFuture.completedFuture(null)));
        return started;
    }

    private static AuthorizationResult result(boolean allowed) {
        return allowed ? AuthorizationResult.ALLOWED : AuthorizationResult.DENIED;
    }

    public List<AuthorizationResult> authorize(AuthorizableRequestContext context, List<Action> actions) {
        List<AuthorizationResult> results = new ArrayList<>();
        for (Action action : actions) {
            String name = action.resourcePattern().name();
            if (name.startsWith("broken")) {
                throw new IllegalStateException("a secret");
            }
            results.add(result(context.clientAddress().getHostAddress().equals(home) || name.startsWith("open")));
        }
        return results;
    }

    public AuthorizationResult authorizeByResourceType(
            AuthorizableRequestContext context, AclOperation operation, ResourceType type) {
        return result(type == ResourceType.TOPIC && operation == AclOperation.READ);
    }

    private static SecurityDisabledException none() {
        return new SecurityDisabledException("The authorizer authorizer_beside_kafka:CustomAuthorizer has no ACLs.");
    }

    public List<? extends CompletionStage<AclCreateResult>> createAcls(
            AuthorizableRequestContext context, List<AclBinding> bindings) {
        throw none();
    }

    public List<? extends CompletionStage<AclDeleteResult>> deleteAcls(
            AuthorizableRequestContext context, List<AclBindingFilter> filters) {
        throw none();
    }

    public Iterable<AclBinding> acls(AclBindingFilter filter) {
        throw none();
    }

    public void close() {}
}
